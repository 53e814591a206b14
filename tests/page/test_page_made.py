"""A tile's sections *Made of* and *Code*: the parts are `attribution`'s, and the copied lines print the cell's number."""

import contextlib
import io

import pytest

import pellucid
from browser import Tab
from pellucid.documents.cell_parts import cell_parts

PROMPT = "The capital of Japan is"
CELLS = [("pellucid/capitals-llama", "layers.2.attn.q", (0, 4, 1, 7)), ("pellucid/capitals-deepseek", "layers.1.out", (0, 3, 5))]
CLIPBOARD = (
    "() => { navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }; }"  # one of the test's own
)


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize(("name", "path", "cell"), CELLS)
@pytest.mark.quick(7)
def test_parts_of_a_cell_are_attributions(tab: Tab, name: str, path: str, cell: tuple[int, ...], lang: str) -> None:
    model = pellucid.load(name, dtype="float32")
    own = cell_parts(model, pellucid.trace(model, PROMPT, 1), path, cell)
    tab.open_cell(path, cell, lang=lang, model=name, prompt=PROMPT)
    tab.page.click("[data-made] summary")
    tab.page.wait_for_selector("[data-made] [data-total]")
    rows = tab.page.locator("[data-made] li").evaluate_all("all => all.map(e => [e.dataset.part, e.querySelector('.n').innerText])")
    assert len(rows) == len(own["parts"]) > 5
    assert [(part, figure(value)) for part, value in rows] == [
        (part["of"]["path"], pytest.approx(part["value"], abs=6e-4)) for part in own["parts"]
    ]
    total = float(tab.page.get_attribute("[data-made] [data-total]", "data-total") or "nan")
    assert total == pytest.approx(own["total"], abs=1e-4) and total == pytest.approx(own["value"], abs=1e-4)
    assert f"{own['count']:,}" in tab.page.inner_text("[data-made]")


@pytest.mark.parametrize(("name", "path", "cell"), CELLS)
@pytest.mark.quick(2)
def test_the_copied_lines_print_the_cell(tab: Tab, name: str, path: str, cell: tuple[int, ...]) -> None:
    reading = tab.open_cell(path, cell, model=name, prompt=PROMPT)
    tab.page.evaluate(CLIPBOARD)
    tab.page.click("[data-code] summary")
    tab.page.wait_for_selector("[data-code] [data-lines]")
    sources = dict(tab.page.locator("[data-code] [data-source]").evaluate_all("all => all.map(e => [e.dataset.source, e.innerText])"))
    assert "def forward" in sources["part"] and "def " in sources["op"]
    tab.page.click("[data-code] [data-copy]")
    lines = tab.page.evaluate("window.copied")
    assert lines == tab.page.inner_text("[data-code] [data-lines]")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(lines, {})
    assert float(printed.getvalue()) == pytest.approx(figure(reading.value), rel=1e-4)


def figure(text: str) -> float:
    """Return a printed number."""
    return float(text.replace("\u2212", "-").replace(",", ""))
