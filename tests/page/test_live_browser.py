"""The page that runs its model, opened from disk in Chromium with the network off: prompts, generation, sliders, sums, and its hash."""

import json
import os
import re
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser

import pellucid
from browser import open_file, open_offline_tab
from pellucid.api.model import Model
from pellucid.html.live import live_page
from pellucid.tracing import Trace

PROMPT = "The capital of France is"
COUNTRIES = (
    *("France", "Germany", "Italy", "Spain", "Japan", "China", "India", "Peru", "Chile", "Cuba", "Egypt", "Kenya"),
    *("Ghana", "Mali", "Chad", "Norway", "Sweden", "Finland", "Poland", "Greece", "Turkey", "Iran", "Iraq", "Oman"),
)
MOST = 6_000_000  # bytes of a specimen's file


@pytest.fixture(scope="module")
def model() -> Model:
    return pellucid.load("pellucid/capitals", dtype="float32")


@pytest.fixture(scope="module")
def file(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("live") / "capitals.html"
    path.write_text(live_page(model), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run(model: Model) -> Trace:
    return pellucid.trace(model, PROMPT, 2, terms=True)


def test_prompts_are_typed_and_texts_generated(browser: Browser, file: Path, model: Model) -> None:
    with open_offline_tab(browser, file) as tab:
        open_file(tab, file, "[data-answer]")
        for prompt in (PROMPT, "The capital of Japan is", "Berlin is the capital of")[:: 1 if FULL else 2]:
            new = pellucid.trace(model, prompt, 3).new
            open_file(tab, file, "[data-answer]")
            tab.enter_prompt(prompt)
            for k, token in enumerate(new):
                tab.page.wait_for_selector(f'[data-answer="{token}"]')
                assert [int(x) for x in tab.page.locator(".token .id").all_inner_texts()] == [*model.ids(prompt), *new[: k + 1]]
                if k + 1 < len(new):
                    tab.page.get_by_role("button", name="+1 token").click()
        open_file(tab, file, "[data-answer]", prompt=PROMPT)
        ids = [*model.ids(PROMPT), *pellucid.trace(model, PROMPT, 20).new]
        tab.page.get_by_role("button", name="Play").click()
        tab.page.wait_for_function("n => document.querySelectorAll('.token .id').length === n", arg=len(ids))
        assert [int(x) for x in tab.page.locator(".token .id").all_inner_texts()] == ids
        tab.page.get_by_role("button", name="Play").wait_for()
        assert tab.page.get_by_role("button", name="Play").is_disabled()  # the text has ended


FIFTY = [
    *(f"The capital of {c} is" for c in COUNTRIES[:18]),
    *(f"{c}'s capital is the city of" for c in COUNTRIES[6:24]),
    *("法国的首都是", "日本の首都は", "A", "é à ü ñ", "1 2 3 4 5", "don't we'll I'm", "<|endoftext|>", "🙂 the", "  x  y", "The The The"),
    *("\u3000宽 格", "½ ² Ⅷ", "e\u0301", "x" * 50),
]
FULL = os.environ.get("PELLUCID_FULL") == "1"
KINDS = ("capitals", "capitals-llama", "capitals-deepseek", "capitals-prefix", "capitals-t5", "capitals-bert")


@pytest.mark.parametrize("name", KINDS if FULL else KINDS[:1])
def test_fifty_prompts_are_pythons(browser: Browser, file: Path, model: Model, tmp_path: Path, name: str) -> None:
    """The ids that the page shows, and the token that it answers with. In the quick form each sixth prompt of one kind."""
    assert len(FIFTY) == len(set(FIFTY)) == 50
    if name != KINDS[0]:
        model, file = pellucid.load(f"pellucid/{name}", dtype="float32"), tmp_path / f"{name}.html"
        file.write_text(live_page(model), encoding="utf-8")
    with open_offline_tab(browser, file) as tab:
        open_file(tab, file, "[data-answer]")
        for text in FIFTY if FULL else FIFTY[::6]:
            prompt = f"{text} [MASK]." if name == "capitals-bert" else text
            tab.enter_prompt(prompt)
            run = pellucid.trace(model, prompt, only="logits")
            tab.page.wait_for_selector(f'[data-answer="{run.new[0]}"]')
            shown = [int(x) for x in tab.page.locator(".token .id").all_inner_texts()]
            filled = dict(zip(run.blanks, run.new, strict=True)) if run.blanks else {len(run.ids) - 1: run.new[0]}  # behind its blank
            assert shown == [id for i, own in enumerate(run.ids) for id in (own, filled.get(i)) if id is not None], prompt


def test_the_file_speaks_both_languages(browser: Browser, file: Path) -> None:
    """Written in one language, it says in the other, too, what computes."""
    with open_offline_tab(browser, file) as tab:
        open_file(tab, file, "[data-answer]", prompt=PROMPT)
        assert "computed in this page" in tab.page.inner_text("[data-precision]")
        tab.page.get_by_role("button", name="中文").click()
        tab.page.wait_for_selector("html[lang^=zh]")
        shown = tab.page.inner_text("[data-precision]")
        assert "在本页中计算" in shown and "computed in this page" not in shown


def test_every_view_of_the_file_works(browser: Browser, file: Path, run: Trace) -> None:
    with open_offline_tab(browser, file) as tab:
        open_file(tab, file, "[data-map] [data-norm]", view="map", prompt=PROMPT)
        assert tab.page.locator("nav a").all_inner_texts() == ["Map", "Life", "Attention", "Next token", "Cache", "Budget", "Change"]
        norms = [
            float(x) for x in tab.page.locator(".band[data-norm]:not([data-start])").evaluate_all("all => all.map(b => b.dataset.norm)")
        ]
        theirs = run.all("layers.3.out")[0].value[0].double().norm(dim=-1).tolist()
        assert all(any(abs(a - b) < 1e-4 * b for a in norms) for b in theirs) or not norms
        open_file(tab, file, "[data-weight]", view="attention", block="layers.2", head=1, position=3, prompt=PROMPT)
        weights = tab.page.eval_on_selector_all("[data-weight]", "cells => cells.map(c => Number(c.dataset.weight))")
        assert torch.allclose(torch.tensor(weights), run.all("layers.2.attn.pattern")[0].value[0, 1, 3], atol=2e-5)
        open_file(tab, file, "[data-pick]", view="next", prompt=PROMPT, sampling="temperature:2 seed:3")
        assert len(tab.page.workers) == 1  # of a file, too
        assert tab.page.get_attribute("tr[data-id] >> nth=0", "data-id") == str(int(run.all("logits")[0].value[0, -1].argmax()))
        open_file(tab, file, "tr[data-step='1'] [data-total]", view="cache", prompt=PROMPT, steps=2)
        open_file(tab, file, "table", view="budget", prompt=PROMPT)
        tab.page.click(".share .opener")
        assert tab.page.locator("[data-share='html']").count() == 0 < tab.page.locator("[data-share='png']").count()


def test_why_runs_the_model_without_each_part(browser: Browser, file: Path, model: Model) -> None:
    """Each head and feed-forward part is switched off in a run of its own, and the logit moves as in Python."""
    plain = pellucid.trace(model, PROMPT, only="logits")
    token = plain.new[0]
    edited = pellucid.trace(model, PROMPT, only="logits", edit=[pellucid.zero("layers.2.attn.z", H=3)])
    moved = float(edited.last_logits(0)[token] - plain.last_logits(0)[token])
    with open_offline_tab(browser, file) as tab:
        open_file(tab, file, "[data-why]", prompt=PROMPT)
        tab.page.click("[data-why]")
        tab.page.wait_for_selector("[data-done='20'][data-of='20']")
        measured = tab.page.get_attribute('[data-part="layers.2.attn 3"]', "data-measured")
        assert float(measured or "nan") == pytest.approx(moved, abs=1e-3)


def test_a_cells_sum_opens_at_once(browser: Browser, file: Path, run: Trace) -> None:
    seen = run.all("layers.2.ffn")[0]
    assert seen.terms is not None
    with open_offline_tab(browser, file) as tab:
        open_file(tab, file, "[data-answer]", prompt=PROMPT)
        open_file(tab, file, '#reading[data-cell="0,4,7"]:not([data-value=""])', prompt=PROMPT, tensor="layers.2.ffn", cell="0,4,7")
        assert tab.formula_sum() == pytest.approx(seen.terms((0, 4, 7)).total(), abs=2e-5 * float(seen.value.abs().max()))
        reading = float(tab.page.get_attribute("#reading", "data-value") or "nan")
        assert reading == pytest.approx(float(seen.value[0, 4, 7]), abs=2e-5 * float(seen.value.abs().max()))
        tab.page.wait_for_selector('[data-received]:not([data-received=""])')
        hashed = tab.page.locator("[data-received]")
        assert hashed.get_attribute("data-received") == hashed.get_attribute("data-source")


def test_the_file_is_small_and_names_no_other_place(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert len(text.encode()) <= MOST
    inside = json.loads(re.search(r'id="live">([^<]*)<', text)[1])  # type: ignore[index]
    assert not re.search(r"https?://|file:|[\"' ]/(work|home|tmp|usr|root)/", json.dumps(inside))
    assert not re.search(r"""(src|href)=["'](?!data:)""", text.split("<script")[0])


@pytest.mark.parametrize("part", ["weights", "kernels"])
def test_a_changed_byte_is_refused(browser: Browser, file: Path, tmp_path: Path, part: str) -> None:
    text = file.read_text(encoding="utf-8")
    at = text.index(f'id="{part}">') + len(part) + 5 + len(text[text.index(f'id="{part}">') :].split("<")[0]) // 2
    changed = tmp_path / "changed.html"
    changed.write_text(text[:at] + ("B" if text[at] != "B" else "C") + text[at + 1 :], encoding="utf-8")
    with open_offline_tab(browser, changed) as tab:
        open_file(tab, changed, "[role=alert]")
        alert = tab.page.inner_text("[role=alert]")
        assert "damaged" in alert and part in alert and json.loads(re.search(r'"sha256":({[^}]*})', text)[1])[part] in alert  # type: ignore[index]
        assert tab.page.locator("[data-answer]").count() == 0


def test_a_prompt_that_is_too_long_is_refused_by_its_count(browser: Browser, file: Path) -> None:
    with open_offline_tab(browser, file) as tab:
        open_file(tab, file, "[data-answer]")
        tab.page.fill("#prompt", "Paris " * 80)
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_selector("[role=alert]")
        assert "64" in tab.page.inner_text("[role=alert]")
        tab.enter_prompt(PROMPT)
        tab.page.wait_for_selector("[data-answer]")
        assert tab.page.locator("[role=alert]").count() == 0
