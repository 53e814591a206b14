"""Files of the kinds of models beside a dense decoder, opened from disk in Chromium with the network off: experts and latent attention, a
prefix mask, an encoder with a decoder, an encoder."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser

import pellucid
from browser import open_file, open_offline_tab
from pellucid.api.model import Model
from pellucid.html.live import live_page

MOST = 6_000_000  # bytes of a specimen's file
PROMPTS = {
    "capitals-deepseek": ("The capital of France is", "The capital of Japan is"),
    "capitals-prefix": ("The capital of France is", "Berlin is the capital of"),
    "capitals-t5": ("The capital of France is Paris.", "The capital of Japan is Tokyo."),
    "capitals-bert": ("The capital of France is [MASK].", "[MASK] is the capital of ___."),
}
COMMON = ["Map", "Life", "Attention"]
VIEWS = {
    "capitals-deepseek": [*COMMON, "Experts", "Next token", "Cache", "Budget", "Change"],
    "capitals-prefix": [*COMMON, "Next token", "Cache", "Budget", "Change"],
    "capitals-t5": [*COMMON, "Next token", "Cache", "Budget", "Change"],
    "capitals-bert": [*COMMON, "Blank", "Budget", "Change"],  # one pass: it draws no token after another, and keeps none
}
CELLS = {  # of each a tensor that a dense decoder lacks, or whose rows see later ones
    "capitals-deepseek": ("layers.2.ffn.down", "3,5"),
    "capitals-prefix": ("layers.2.attn.z", "0,1,2,3"),
    "capitals-t5": ("decoder.layers.1.cross.z", "0,0,2,3"),
    "capitals-bert": ("layers.2.attn.z", "0,1,2,3"),
}
PARTS = {  # whose fourth head is switched off
    "capitals-deepseek": "layers.2.attn",
    "capitals-prefix": "layers.2.attn",
    "capitals-t5": "decoder.layers.1.cross",
    "capitals-bert": "layers.2.attn",
}


@pytest.fixture(scope="module", params=PROMPTS)
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Model, Path]:
    model = pellucid.load(f"pellucid/{request.param}", dtype="float32")
    path = tmp_path_factory.mktemp("live") / f"{request.param}.html"
    path.write_text(live_page(model), encoding="utf-8")
    assert path.stat().st_size <= MOST
    return request.param, model, path


@pytest.mark.quick(4)
def test_answers_are_pythons(browser: Browser, opened: tuple[str, Model, Path]) -> None:
    name, model, file = opened
    with open_offline_tab(browser, file) as tab:
        open_file(tab, file, "[data-answer]")
        for prompt in PROMPTS[name]:
            new = pellucid.trace(model, prompt, 1 if name == "capitals-bert" else 3).new
            open_file(tab, file, "[data-answer]")
            tab.enter_prompt(prompt)
            tab.page.wait_for_selector(f'[data-answer="{new[0]}"]')
            for token in [] if name == "capitals-bert" else new[1:]:
                tab.page.get_by_role("button", name="+1 token").click()
                tab.page.wait_for_selector(f'[data-answer="{token}"]')
            ids = [int(x) for x in tab.page.locator(".token .id").all_inner_texts()]
            assert all(i in ids for i in (*model.ids(prompt), *new))


@pytest.mark.quick(7)
def test_views_are_there(browser: Browser, opened: tuple[str, Model, Path]) -> None:
    name, _, file = opened
    prompt = PROMPTS[name][0]
    with open_offline_tab(browser, file) as tab:
        open_file(tab, file, "[data-map] [data-norm]", view="map", prompt=prompt)
        assert tab.page.locator("nav a").all_inner_texts() == VIEWS[name]
        views = {"life": "[data-path]", "attention": "[data-weight]", "next": "tr[data-id]", "budget": "table", "change": "main button"}
        for view, selector in views.items():
            open_file(tab, file, selector, view=view, prompt=prompt)
            assert tab.page.locator("[role=alert]").count() == 0, view
        if "Cache" in VIEWS[name]:
            open_file(tab, file, "tr[data-step='1'] [data-total]", view="cache", prompt=prompt, steps=2)


@pytest.mark.quick(4)
def test_a_cells_sum_is_pythons(browser: Browser, opened: tuple[str, Model, Path]) -> None:
    name, model, file = opened
    (path, cell), prompt = CELLS[name], PROMPTS[name][0]
    at = tuple(map(int, cell.split(",")))
    seen = pellucid.trace(model, prompt, terms=True).all(path)[0]
    assert seen.terms is not None
    near = 2e-5 * float(seen.value.abs().max())
    with open_offline_tab(browser, file) as tab:
        open_file(tab, file, "[data-answer]", prompt=prompt)
        open_file(tab, file, f'#reading[data-cell="{cell}"]:not([data-value=""])', prompt=prompt, tensor=path, cell=cell)
        assert float(tab.page.get_attribute("#reading", "data-value") or "nan") == pytest.approx(float(seen.value[at]), abs=near)
        assert tab.formula_sum() == pytest.approx(seen.terms(at).total(), abs=near)


@pytest.mark.quick(4)
def test_why_measures_each_part(browser: Browser, opened: tuple[str, Model, Path]) -> None:
    name, model, file = opened
    prompt = PROMPTS[name][0]
    part = PARTS[name]
    plain = pellucid.trace(model, prompt, only="logits")
    row, token = plain.blanks[0] if plain.blanks else -1, plain.new[0]
    edited = pellucid.trace(model, prompt, only="logits", edit=[pellucid.zero(f"{part}.z", H=3)])
    moved = float(edited.all("logits")[0].value[0, row, token] - plain.all("logits")[0].value[0, row, token])
    with open_offline_tab(browser, file) as tab:
        open_file(tab, file, "[data-why]", prompt=prompt)
        tab.page.click("[data-why]")
        tab.page.wait_for_selector(f'[data-part="{part} 3"][data-measured]:not([data-measured=""])')
        assert float(tab.page.get_attribute(f'[data-part="{part} 3"]', "data-measured") or "nan") == pytest.approx(moved, abs=1e-3)
        assert tab.page.locator("[role=alert]").count() == 0
