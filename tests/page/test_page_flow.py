"""Life draws the flow of a run: every card has a line from its inputs and one to its consumers.

The run's own inputs are the judge; the drawing is measured in a real Chromium: a line counts where it can be seen and
touches both of its cards, and the residual stream is one line from the first state to the last, through folded blocks too.
"""

import os
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from browser import Tab, open_tab, serve_from_thread
from pellucid.api.model import specimens

WIDTHS = (1440, 390)
FULL = bool(os.environ.get("PELLUCID_FULL"))
SHAPES = "gpt2-small"
LAST = {"logits", "sample.logits"}
DRAWN = """() => {
  const river = document.querySelector(".river"), at = river.querySelector("svg").getBoundingClientRect();
  const box = e => {
    const b = e.getBoundingClientRect();
    return { left: b.left - at.left, right: b.right - at.left, top: b.top - at.top, bottom: b.bottom - at.top };
  };
  const seen = p => { const s = getComputedStyle(p); return p.checkVisibility() && s.opacity > 0.15 && parseFloat(s.strokeWidth) >= 1; };
  const point = (p, n) => { const { x, y } = p.getPointAtLength(n); return [x, y]; };
  return {
    cards: [...river.querySelectorAll("[data-path]")].map(e => ({ path: e.dataset.path, stem: e.closest(".stems") !== null, ...box(e) })),
    lines: [...river.querySelectorAll("svg path")].filter(seen).map(p => ({
      from: p.dataset.from, to: p.dataset.to, wide: p.classList.contains("wide"), ends: [point(p, 0), point(p, p.getTotalLength())],
    })),
  };
}"""

# Words that a stem's line runs through: those without a background between them and the lines, which lie behind.
CROSSED = """() => {
  const river = document.querySelector(".river"), svg = river.querySelector("svg"), origin = svg.getBoundingClientRect(), words = [];
  const clear = s => s.backgroundColor === "rgba(0, 0, 0, 0)" && s.backgroundImage === "none";
  const open = e => e === river || (clear(getComputedStyle(e)) && open(e.parentElement));
  const texts = document.createTreeWalker(river, NodeFilter.SHOW_TEXT), range = document.createRange();
  for (let t; (t = texts.nextNode()); ) {
    if (!t.nodeValue.trim() || !t.parentElement.checkVisibility() || svg.contains(t) || !open(t.parentElement)) continue;
    range.selectNodeContents(t);
    for (const b of range.getClientRects()) words.push({ text: t.nodeValue.trim(), b });
  }
  const crossed = new Set();
  for (const p of svg.querySelectorAll("path.wide"))
    for (let n = 0; n <= p.getTotalLength(); n += 3) {
      const at = p.getPointAtLength(n), x = at.x + origin.left, y = at.y + origin.top;
      for (const { text, b } of words) if (x > b.left && x < b.right && y > b.top && y < b.bottom) crossed.add(text);
    }
  return [...crossed];
}"""


def apart(point: list[float], card: dict[str, Any]) -> float:
    """Return the pixels from a point to a card's edge, 0 within it."""
    x, y = point
    return max(card["left"] - x, x - card["right"], card["top"] - y, y - card["bottom"], 0.0)


def complaints(page: Page, made: dict[str, list[str]]) -> list[str]:
    """Return what is wrong with the lines that are drawn. made: the inputs of each tensor of the run."""
    page.wait_for_function("n => document.querySelectorAll('.river svg path').length >= n", arg=1)
    drawing = page.evaluate(DRAWN)
    cards = {c["path"]: c for c in drawing["cards"]}
    wrong = [f"{line['from']} -> {line['to']} touches no card" for line in drawing["lines"] if not touches(line, cards)]
    sources, consumers = {line["to"] for line in drawing["lines"]}, {line["from"] for line in drawing["lines"]}
    wrong += [f"{path} has no source" for path in cards if made[path] and path not in sources]
    return wrong + [f"{path} has no consumer" for path in cards if path not in LAST | consumers] + broken(drawing)


def touches(line: dict[str, Any], cards: dict[str, dict[str, Any]]) -> bool:
    pairs = zip(line["ends"], (line["from"], line["to"]), strict=True)
    return all(path in cards and apart(end, cards[path]) < 3 for end, path in pairs)


def broken(drawing: dict[str, Any]) -> list[str]:
    """Return the gaps in the residual stream of each stack, from its first state to its last."""
    gaps = []
    for encoder in (True, False):
        own = [c for c in drawing["cards"] if c["stem"] and (c["path"].startswith("encoder.") or c["path"] == "source") == encoder]
        names = {c["path"] for c in own}
        spans = [(c["top"], c["bottom"]) for c in own]
        spans += [
            tuple(sorted(y for _, y in line["ends"])) for line in drawing["lines"] if line["wide"] and {line["from"], line["to"]} <= names
        ]
        reached = None
        for top, bottom in sorted(spans):
            if reached is not None and top > reached + 2:
                gaps.append(f"no residual line from {reached:.0f} to {top:.0f}")
            reached = max(bottom, reached or bottom)
    return gaps


def run_of(tab: Tab, **place: Any) -> dict[str, list[str]]:
    """Open a run. Returns the inputs of each of its tensors, from the server's document."""
    with tab.page.expect_response(lambda r: r.request.method == "POST" and r.url.split("?")[0].endswith("/api/runs")) as response:
        tab.go(**place)
    tab.settle()
    return {t["path"]: t["inputs"] for t in response.value.json()["tensors"]}


def fold(page: Page, opens: bool) -> None:
    """Unfold or fold all blocks, one after the other."""
    wanted = f"[data-block][aria-expanded='{str(not opens).lower()}']"
    while (closed := page.locator(wanted)).count():
        before = closed.count()
        closed.first.click()
        page.wait_for_function("([s, n]) => document.querySelectorAll(s).length < n", arg=[wanted, before])


@pytest.mark.parametrize("name", specimens())
@pytest.mark.quick(8)
def test_everything_comes_from_somewhere_and_goes_somewhere(tab: Tab, name: str) -> None:
    for width in WIDTHS if FULL else WIDTHS[specimens().index(name) % 2 :][:1]:  # in the quick form each model has one width, by turns
        tab.page.set_viewport_size({"width": width, "height": 900})
        made = run_of(tab, model=name)
        assert complaints(tab.page, made) == [], width
        fold(tab.page, True)
        assert complaints(tab.page, made) == [], (width, "unfolded")
        fold(tab.page, False)
        assert complaints(tab.page, made) == [], (width, "folded")


def test_so_it_does_where_there_are_shapes_alone(browser: Browser) -> None:
    with serve_from_thread(SHAPES) as address, open_tab(browser, address) as tab:
        for width in WIDTHS:
            tab.page.set_viewport_size({"width": width, "height": 900})
            made = run_of(tab)
            assert len(made) > 100 and complaints(tab.page, made) == []


@pytest.mark.parametrize("name", ["pellucid/capitals-deepseek", "pellucid/capitals-t5", "pellucid/reader"])
@pytest.mark.parametrize("width", [390, 320])
@pytest.mark.quick(4)
def test_no_stem_runs_through_words(tab: Tab, name: str, width: int) -> None:
    tab.page.set_viewport_size({"width": width, "height": 900})
    run_of(tab, model=name)
    for opens in (False, True):
        fold(tab.page, opens)
        assert tab.page.evaluate(CROSSED) == [], opens
    tab.page.evaluate("document.querySelectorAll('.river *').forEach((e) => { e.style.background = 'none'; })")
    assert tab.page.evaluate(CROSSED) != []


MUTANTS = {
    "lines end at folds": ("path.folded", "no residual line"),
    "long lines are left out": ("path[data-from='encoder.norm']", "encoder.norm has no consumer"),
    "the last row comes from nowhere": ("path[data-to='sample.logits']", "sample.logits has no source"),
    "a line that goes astray": ("", "touches no card"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.quick(2)
def test_a_line_that_is_missing_is_found(tab: Tab, mutant: str) -> None:
    made = run_of(tab, model="pellucid/capitals-t5")
    selector, complaint = MUTANTS[mutant]
    if selector:
        assert tab.page.evaluate(
            "s => { const all = document.querySelectorAll(s); all.forEach(p => p.remove()); return all.length; }", selector
        )
    else:
        tab.page.evaluate("document.querySelector('.river svg path:not(.wide)').setAttribute('d', 'M-50 -50L-60 -60')")
    assert any(complaint in text for text in complaints(tab.page, made))
