"""The way back from an answer: its stops are cells of Python's record and stand in the address. Keys go along it, in a saved file too."""

from pathlib import Path
from urllib.parse import parse_qs

import pytest
from playwright.sync_api import Browser, Page

import pellucid
from browser import Tab, address_of, download_page, open_file, open_offline_tab
from pellucid.api.model import Model
from pellucid.tracing import Trace

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def run() -> tuple[Model, Trace]:
    model = pellucid.load("pellucid/capitals", dtype="float32")
    return model, pellucid.trace(model, PROMPT, 2, terms=True)


def trail(page: Page) -> list[str]:
    """Return the stops that the address has."""
    return parse_qs(address_of(page).removeprefix("#")).get("trail", [""])[0].split("; ")


def values(page: Page) -> list[float]:
    """Return the numbers of the stops as the page has them."""
    page.wait_for_function("() => [...document.querySelectorAll('[data-stop]')].every(e => e.dataset.value)")
    return [float(x) for x in page.eval_on_selector_all("[data-stop]", "all => all.map(e => e.dataset.value)")]


def numbers(run: tuple[Model, Trace], stops: list[str]) -> list[float]:
    """Return Python's numbers of the stops: of records, or of weights."""
    model, trace = run
    out = []
    for stop in stops:
        path, _, cell = stop.rpartition(" ")
        at, _, step = cell.partition("@")
        index = tuple(map(int, at.split(",")))
        held_value = next((s.value for s in trace if (s.path, s.step) == (path, int(step or 0))), None)
        out.append(float(held_value[index] if held_value is not None else model.module.get_parameter(path).detach()[index]))
    return out


def follow(page: Page, to: str) -> None:
    """Press the link to a path's cell, the first of it in the formula or the table."""
    page.wait_for_selector("aside [data-follow]")  # all of them come at once
    if page.locator(f"[data-follow^='{to} ']").count() == 0:
        page.click("aside [data-terms] summary")
    page.locator(f"[data-follow^='{to} ']").first.click()
    page.wait_for_selector(f"aside[aria-label='{to}'] #reading[data-cell]:not([data-value=''])")


WAY = ["norm", "layers.3.out", "layers.3.ffn", "layers.3.ffn.neurons", "layers.3.ffn.up"]


def test_from_the_answer_to_a_sum_and_back(tab: Tab, run: tuple[Model, Trace]) -> None:
    picked = run[1].new[0]
    tab.go(prompt=PROMPT, steps=2)
    page = tab.page
    page.click(f"[data-logit='{picked}']")
    page.wait_for_selector(f"#reading[data-cell='0,4,{picked}']")
    for path in WAY:
        follow(page, path)
    stops = trail(page)
    assert [s.split()[0] for s in stops] == ["logits", *WAY]
    assert values(page) == pytest.approx(numbers(run, stops), rel=1e-6)
    other = [s if i else f"logits 0,3,{picked}" for i, s in enumerate(stops)]
    assert values(page) != pytest.approx(numbers(run, other), rel=1e-6)  # the mutant: another row
    assert page.get_attribute("[data-stop='5']", "aria-current") == "step"
    likely = next(c for c in page.locator(f"tr[data-id='{picked}'] td.n").all_inner_texts() if c.endswith("%"))
    assert page.inner_text("[data-answer] b") == likely
    # Back along it, the rest stays; the address opens it all again.
    page.focus("[data-stop='5']")
    for key, at in (("ArrowLeft", 4), ("ArrowLeft", 3), ("ArrowRight", 4), ("Home", 0), ("End", 5), ("ArrowLeft", 4)):
        page.keyboard.press(key)
        page.wait_for_selector(f"[data-stop='{at}'][aria-current]:focus")
        assert trail(page) == stops
    page.reload()
    page.wait_for_selector("[data-stop='4'][aria-current]")
    assert trail(page) == stops and values(page) == pytest.approx(numbers(run, stops), rel=1e-6)
    # Another way leaves the old one; another cell leaves the trail.
    follow(page, "layers.3.ffn.up")
    assert trail(page) == stops
    page.focus("aside .frame")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("[data-stop]", state="detached")
    assert trail(page) == [""]
    page.go_back()
    page.wait_for_selector("[data-stop='4'][aria-current]")


def test_by_the_keys_of_the_picture(tab: Tab, run: tuple[Model, Trace]) -> None:
    """An arrow marks the largest term, Enter opens what it was made of: at last a row of the table of pieces."""
    seen = run[1].all("layers.0.attn.q")[0]
    tab.open_cell("layers.0.attn.q", (0, 3, 1, 10), prompt=PROMPT)
    tab.settle()
    page = tab.page
    assert seen.terms is not None
    terms = seen.terms((0, 3, 1, 10))
    order = terms.summands.abs().argsort(descending=True, stable=True).tolist()
    product = next(i for i in order if i < len(terms.summands) - len(terms.added))
    page.focus(".strips")
    for _ in range(order.index(product) + 1):
        page.keyboard.press("ArrowRight")
    assert f" {product}:" in page.inner_text("#term")
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-stop='1'][aria-current]")
    for path in ("start", "embed", "embed.weight"):
        follow(page, path)
    stops = trail(page)
    assert stops[-1].startswith(f"embed.weight {run[1].ids[3]},")
    assert values(page) == pytest.approx(numbers(run, stops), rel=1e-6)
    assert "France" in page.inner_text(".trail li:last-child")


def test_a_key_of_an_earlier_step_opens_there(tab: Tab, run: tuple[Model, Trace]) -> None:
    tab.open_cell("layers.0.attn.scores", (0, 1, 0, 3), prompt=PROMPT, steps=2, step=1)
    tab.settle()
    follow(tab.page, "layers.0.attn.k")
    stops = trail(tab.page)
    assert stops == ["layers.0.attn.scores 0,1,0,3@1", stops[1]] and "@" not in stops[1] and stops[1].startswith("layers.0.attn.k 0,3,1,")
    assert values(tab.page) == pytest.approx(numbers(run, stops), rel=1e-6)
    assert "step=" not in address_of(tab.page)


@pytest.fixture(scope="module")
def file(browser: Browser, address: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return download_page(browser, address, tmp_path_factory.mktemp("trail"), prompt=PROMPT, steps=2)


def test_a_saved_file_is_followed_too(browser: Browser, file: Path, run: tuple[Model, Trace]) -> None:
    """Links lead to every tensor that the file has; weights are not in it."""
    seen = run[1].all("layers.0.attn.q")[0]
    row = seen.value[0, -1]
    cell = ",".join(map(str, (0, seen.shape[1] - 1, *divmod(int(row.argmax()), row.shape[-1]))))
    with open_offline_tab(browser, file) as tab:
        open_file(tab, file, f'#reading[data-cell="{cell}"]:not([data-value=""])', tensor=seen.path, cell=cell)
        tab.page.wait_for_selector(".strips [data-strip]")
        follow(tab.page, "layers.0.attn_norm")
        stops = trail(tab.page)
        assert stops[0] == f"layers.0.attn.q {cell}" and stops[1].startswith("layers.0.attn_norm 0,4,")
        assert values(tab.page) == pytest.approx(numbers(run, stops), rel=1e-6)
        assert tab.page.locator("[data-follow*='weight']").count() == 0
        tab.page.focus("[data-stop='1']")
        tab.page.keyboard.press("ArrowLeft")
        tab.page.wait_for_selector("[data-stop='0'][aria-current]:focus")
