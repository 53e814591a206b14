"""Places on the page: new tokens, refused prompts, links, the focus, views that are not there."""

import json
from typing import Any

import pytest
from playwright.sync_api import expect

import pellucid
from browser import Tab, address_of
from pellucid.api.change_values import changes
from pellucid.messages import phrases

PROMPT = "The capital of France is"
MESSAGES = phrases("en")
LOGITS = "cells => cells.map(c => [Number(c.parentElement.dataset.id), Number(c.dataset.logit)])"
IN_VIEW = """selector => { const e = document.querySelector(selector); if (!e) return false; const b = e.getBoundingClientRect();
  return b.bottom > 60 && b.top < innerHeight && b.right > 0 && b.left < innerWidth; }"""


def test_a_filled_blank_stands_in_the_blank(tab: Tab) -> None:
    model = pellucid.load("pellucid/capitals-bert", dtype="float32")
    run = pellucid.trace(model, f"{PROMPT} ___.")
    tab.go(model=model.name, prompt=f"{PROMPT} ___.")
    (row,), (new,) = run.blanks, run.new
    blank = tab.page.locator(".token").nth(row)
    assert blank.locator(".id").all_inner_texts() == [str(run.ids[row]), str(new)]
    assert tab.page.locator(".token").count() == len(run.ids)
    names = tab.page.locator("main nav a").all_inner_texts()
    assert MESSAGES["page.view.blank"] in names and MESSAGES["page.view.next"] not in names


def test_a_translation_has_a_line_of_its_own(tab: Tab) -> None:
    tab.go(model="pellucid/capitals-t5", prompt=f"{PROMPT} Paris.", steps=3)
    source, target = tab.page.locator("section > ol").all()[:2]
    run = pellucid.trace(pellucid.load("pellucid/capitals-t5", dtype="float32"), f"{PROMPT} Paris.", 3)
    assert [int(x) for x in source.locator(".id").all_inner_texts()] == run.ids
    assert [int(x) for x in target.locator(".token .id").all_inner_texts()] == run.new
    assert target.locator(".token .at").all_inner_texts() == ["1", "2", "3"]


def test_an_early_end_is_shown(tab: Tab) -> None:
    model = pellucid.load("pellucid/capitals", dtype="float32")
    new = pellucid.trace(model, PROMPT, 12).new
    assert 1 < len(new) < 12 and new[-1] in model.stops
    tab.go(prompt=PROMPT, steps=12)
    expect(tab.page.locator("[data-stopped]")).to_have_attribute("data-stopped", str(len(new)))
    expect(tab.page.locator("[data-stopped]")).to_contain_text("12")
    tab.go(prompt=PROMPT, steps=len(new))
    tab.settle()
    assert tab.page.locator("[data-stopped]").count() == 0


def test_a_refused_prompt_says_what_is_still_shown(tab: Tab) -> None:
    tab.refusals = {400}
    tab.go(prompt=PROMPT)
    tab.page.fill("#prompt", "The " * 80)
    tab.page.keyboard.press("Enter")
    still = tab.page.locator(".fault .still")
    expect(still).to_contain_text(PROMPT)
    assert tab.page.locator("main.old").count() == 1
    still.locator("button").click()
    expect(tab.page.locator(".fault")).to_have_count(0)
    assert tab.page.input_value("#prompt") == PROMPT and tab.page.locator("main.old").count() == 0
    assert "The+The" not in address_of(tab.page)


@pytest.mark.parametrize("place", [{"tensor": "layers.2.attn.scores", "cell": "0,1,4,1"}, {"tensor": "layers.3.ffn"}])
@pytest.mark.quick(2)
def test_a_link_to_a_tensor_of_a_folded_block_opens_the_block(tab: Tab, place: dict[str, Any]) -> None:
    tab.go(prompt=PROMPT, **place)
    tab.settle()
    assert tab.page.evaluate(IN_VIEW, f".river [data-path='{place['tensor']}']")
    if "cell" in place:
        lit = tab.page.locator(".river .over")  # the framed cells of the card and of its inputs
        assert lit.count() == 3
    block = place["tensor"].rsplit(".", 1)[0].removesuffix(".attn")
    tab.page.click(f"[data-block='{block}'][aria-expanded='true']")  # what is folded by hand stays folded
    expect(tab.page.locator(f".river [data-path='{place['tensor']}']")).to_have_count(0)


def test_the_tour_shows_what_it_speaks_of(tab: Tab) -> None:
    for station in (6, 7):
        tab.go(prompt=PROMPT, tour=station)
        tab.page.wait_for_selector("aside[data-toured]")
        tab.settle()
        for name in ("q", "k", "scores"):
            assert tab.page.evaluate(IN_VIEW, f".river [data-path='layers.0.attn.{name}']"), (station, name)


def test_enter_on_a_card_takes_the_focus_into_its_tile(tab: Tab) -> None:
    tab.go(prompt=PROMPT)
    tab.page.focus("[data-path='layers.0.attn.q']")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_function("document.activeElement.closest('aside') !== null")
    tab.page.keyboard.press("Escape")
    tab.page.wait_for_function("document.activeElement.dataset.path === 'layers.0.attn.q'")
    tab.page.click("[data-path='layers.0.attn.k']")  # the mouse stays where it is
    tab.page.wait_for_selector("aside .frame")
    assert tab.page.evaluate("document.activeElement.closest('aside') === null")


def test_a_card_describes_its_axes_and_its_source_in_words(tab: Tab) -> None:
    tab.go(model="pellucid/capitals-deepseek", prompt=PROMPT)
    description = tab.page.get_attribute("[data-path='layers.0.attn.pattern']", "aria-description") or ""
    assert (
        MESSAGES["axis.H"] in description and MESSAGES["axis.S"] in description and MESSAGES["page.recomputed"].split("{")[0] in description
    )


@pytest.mark.parametrize(
    ("model", "view"), [("pellucid/capitals", "nonsense"), ("pellucid/capitals", "experts"), ("pellucid/capitals-bert", "cache")]
)
def test_a_view_that_is_not_there_is_the_first(tab: Tab, model: str, view: str) -> None:
    tab.go(model=model, view=view)
    assert tab.page.locator("main nav a[aria-current]").all_inner_texts() == [MESSAGES["page.view.map"]]
    expect(tab.page.locator("svg[data-map]")).to_have_count(1)


def test_a_change_is_made_by_its_button_and_not_on_the_way(tab: Tab) -> None:
    tab.go(view="change", prompt=PROMPT)
    tab.page.fill("input.path", "layers.1.attn.z")
    tab.page.keyboard.press("Enter")
    tab.settle()
    assert tab.page.locator(".edits li").count() == 0
    tab.page.fill("input.path", "layers.1.attn.zz")
    expect(tab.page.locator("[data-unknown]")).to_contain_text("layers.1.attn.zz")
    assert tab.page.locator("button.add").is_disabled()
    tab.page.fill("input.path", "layers.1.attn.z")
    tab.page.press("#change-value", "Enter")
    expect(tab.page.locator(".edits li")).to_have_count(1)
    assert json.loads(tab.page.evaluate("new URLSearchParams(location.hash.slice(1)).get('edits')"))[0][0] == "layers.1.attn.z"


def test_a_change_before_a_part_and_of_another_tensor(tab: Tab) -> None:
    """Made in Chinese on a model of another kind: the address holds both, and the logits are Python's."""
    model, prompt = pellucid.load("pellucid/capitals-deepseek", dtype="float32"), "法国的首都是"
    tab.go("zh", view="change", model="pellucid/capitals-deepseek", prompt=prompt)
    tab.page.fill("input.path", "layers.1.attn.q_a.in")
    tab.page.fill("input.at >> nth=0", "3")
    tab.page.click("button.add")
    tab.page.fill("input.path", "layers.2.ffn")
    tab.page.select_option("form select", "tensor")
    tab.page.fill("#change-value", "layers.2.ffn_norm")
    tab.page.click("button.add")
    expect(tab.page.locator(".edits li")).to_have_count(2)
    tab.settle()
    texts = ["layers.1.attn.q_a.in[T=3] = 0", "layers.2.ffn = layers.2.ffn_norm"]
    right = pellucid.trace(model, prompt, edit=changes(model, texts)).last_logits(0)
    plain = pellucid.trace(model, prompt).last_logits(0)
    cells = tab.page.eval_on_selector_all("[data-logit]", LOGITS)
    assert len(cells) > 5 and all(logit == float(right[int(id)]) != float(plain[int(id)]) for id, logit in cells)
    tab.page.fill("input.path", "layers.1.attn.q_a.in")  # chosen again
    expect(tab.page.locator("input.at").first).to_have_value("3")
    tab.page.fill("input.path", "layers.1.attn.nothing.in")
    assert tab.page.locator("button.add").is_disabled()


def test_an_edit_adds_a_tensor_whose_path_has_one_word(tab: Tab) -> None:
    """The list, the address and the logits have it; a reload takes up the place before a part that was edited last."""
    model = pellucid.load("pellucid/capitals", dtype="float32")
    tab.go(view="change", model=model.name, prompt=PROMPT)
    tab.page.fill("input.path", "layers.1.out")
    tab.page.select_option("form select", "plus")
    tab.page.fill("#change-value", "embed")
    tab.page.click("button.add")
    expect(tab.page.locator(".edits li")).to_have_count(1)
    edits = [["layers.1.out", ":,:,:", "plus", "embed"], ["layers.1.ffn.in", "0,2:4,:", "times", "2"]]
    assert json.loads(tab.page.evaluate("new URLSearchParams(location.hash.slice(1)).get('edits')")) == edits[:1]
    right = pellucid.trace(model, PROMPT, edit=changes(model, ["layers.1.out += embed"])).last_logits(0)
    tab.settle()
    cells = tab.page.eval_on_selector_all("[data-logit]", LOGITS)
    assert len(cells) > 5 and all(logit == float(right[int(id)]) for id, logit in cells)
    tab.go(view="change", model=model.name, prompt=PROMPT, edits=json.dumps(edits))
    expect(tab.page.locator(".edits li")).to_have_count(2)
    assert tab.page.input_value("input.path") == "layers.1.ffn.in"
    assert tab.page.locator("input.at").evaluate_all("all => all.map(e => e.value)") == ["2:4", ":"]
