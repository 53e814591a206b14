"""Where things stand on the page and where one gets to: new tokens, refused prompts, links, focus, narrow windows."""

import json
from typing import Any

import pytest
from playwright.sync_api import expect

import pellucid
from pellucid.messages import phrases
from visits import Visit

PROMPT = "The capital of France is"
SAID = phrases("en")
IN_SIGHT = """selector => { const e = document.querySelector(selector); if (!e) return false; const b = e.getBoundingClientRect();
  return b.bottom > 60 && b.top < innerHeight && b.right > 0 && b.left < innerWidth; }"""


def test_a_filled_blank_stands_in_the_blank(visit: Visit) -> None:
    model = pellucid.load("pellucid/capitals-bert", dtype="float32")
    run = pellucid.trace(model, f"{PROMPT} ___.")
    visit.go(model=model.name, prompt=f"{PROMPT} ___.")
    (row,), (new,) = run.blanks, run.new
    blank = visit.page.locator(".token").nth(row)
    assert blank.locator(".id").all_inner_texts() == [str(run.ids[row]), str(new)]
    assert visit.page.locator(".token").count() == len(run.ids)
    names = visit.page.locator("main nav a").all_inner_texts()
    assert SAID["page.view.blank"] in names and SAID["page.view.next"] not in names


def test_a_translation_has_a_line_of_its_own(visit: Visit) -> None:
    visit.go(model="pellucid/capitals-t5", prompt=f"{PROMPT} Paris.", steps=3)
    source, target = visit.page.locator("section > ol").all()[:2]
    run = pellucid.trace(pellucid.load("pellucid/capitals-t5", dtype="float32"), f"{PROMPT} Paris.", 3)
    assert [int(x) for x in source.locator(".id").all_inner_texts()] == run.ids
    assert [int(x) for x in target.locator(".token .id").all_inner_texts()] == run.new
    assert target.locator(".token .at").all_inner_texts() == ["1", "2", "3"]


def test_an_end_before_what_was_asked_for_is_said(visit: Visit) -> None:
    model = pellucid.load("pellucid/capitals", dtype="float32")
    new = pellucid.trace(model, PROMPT, 12).new
    assert 1 < len(new) < 12 and new[-1] in model.stops
    visit.go(prompt=PROMPT, steps=12)
    expect(visit.page.locator("[data-stopped]")).to_have_attribute("data-stopped", str(len(new)))
    expect(visit.page.locator("[data-stopped]")).to_contain_text("12")
    visit.go(prompt=PROMPT, steps=len(new))
    visit.settle()
    assert visit.page.locator("[data-stopped]").count() == 0


def test_a_refused_prompt_says_what_is_still_shown(visit: Visit) -> None:
    visit.refusals = {400}
    visit.go(prompt=PROMPT)
    visit.page.fill("#prompt", "The " * 80)
    visit.page.keyboard.press("Enter")
    still = visit.page.locator(".fault .still")
    expect(still).to_contain_text(PROMPT)
    assert visit.page.locator("main.old").count() == 1
    still.locator("button").click()
    expect(visit.page.locator(".fault")).to_have_count(0)
    assert visit.page.input_value("#prompt") == PROMPT and visit.page.locator("main.old").count() == 0
    assert "The+The" not in visit.page.evaluate("location.hash")


@pytest.mark.parametrize("place", [{"tensor": "layers.2.attn.scores", "cell": "0,1,4,1"}, {"tensor": "layers.3.ffn"}])
def test_a_link_to_a_tensor_of_a_folded_block_opens_the_block(visit: Visit, place: dict[str, Any]) -> None:
    visit.go(prompt=PROMPT, **place)
    visit.settle()
    assert visit.page.evaluate(IN_SIGHT, f".river [data-path='{place['tensor']}']")
    if "cell" in place:
        lit = visit.page.locator(".river .over")  # the framed cells of the card and of those it was made from
        assert lit.count() == 3
    block = place["tensor"].rsplit(".", 1)[0].removesuffix(".attn")
    visit.page.click(f"[data-block='{block}'][aria-expanded='true']")  # what is folded by hand stays folded
    expect(visit.page.locator(f".river [data-path='{place['tensor']}']")).to_have_count(0)


def test_the_tour_shows_what_it_speaks_of(visit: Visit) -> None:
    for station in (6, 7):
        visit.go(prompt=PROMPT, tour=station)
        visit.page.wait_for_selector("aside[data-toured]")
        visit.settle()
        for name in ("q", "k", "scores"):
            assert visit.page.evaluate(IN_SIGHT, f".river [data-path='layers.0.attn.{name}']"), (station, name)


def test_enter_on_a_card_takes_the_focus_into_its_tile(visit: Visit) -> None:
    visit.go(prompt=PROMPT)
    visit.page.focus("[data-path='layers.0.attn.q']")
    visit.page.keyboard.press("Enter")
    visit.page.wait_for_function("document.activeElement.closest('aside') !== null")
    visit.page.keyboard.press("Escape")
    visit.page.wait_for_function("document.activeElement.dataset.path === 'layers.0.attn.q'")
    visit.page.click("[data-path='layers.0.attn.k']")  # the mouse stays where it is
    visit.page.wait_for_selector("aside .frame")
    assert visit.page.evaluate("document.activeElement.closest('aside') === null")


def test_a_card_tells_its_axes_and_its_source_in_words(visit: Visit) -> None:
    visit.go(prompt=PROMPT)
    told = visit.page.get_attribute("[data-path='layers.0.attn.pattern']", "aria-description") or ""
    assert SAID["axis.H"] in told and SAID["axis.S"] in told and SAID["page.recomputed"].split("{")[0] in told


@pytest.mark.parametrize(
    ("model", "view"), [("pellucid/capitals", "nonsense"), ("pellucid/capitals", "experts"), ("pellucid/capitals-bert", "cache")]
)
def test_a_view_that_is_not_there_is_the_first(visit: Visit, model: str, view: str) -> None:
    visit.go(model=model, view=view)
    assert visit.page.locator("main nav a[aria-current]").all_inner_texts() == [SAID["page.view.life"]]
    assert visit.page.locator(".river").count() == 1


def test_a_change_is_made_by_its_button_and_not_on_the_way(visit: Visit) -> None:
    visit.go(view="change", prompt=PROMPT)
    visit.page.fill("input.path", "layers.1.attn.z")
    visit.page.keyboard.press("Enter")
    visit.settle()
    assert visit.page.locator(".edits li").count() == 0
    visit.page.fill("input.path", "layers.1.attn.zz")
    expect(visit.page.locator("[data-unknown]")).to_contain_text("layers.1.attn.zz")
    assert visit.page.locator("button.add").is_disabled()
    visit.page.fill("input.path", "layers.1.attn.z")
    visit.page.press("#change-value", "Enter")
    expect(visit.page.locator(".edits li")).to_have_count(1)
    assert json.loads(visit.page.evaluate("new URLSearchParams(location.hash.slice(1)).get('edits')"))[0][0] == "layers.1.attn.z"
