"""Small pictures of few rows have the rows' pieces at their left, and other pictures have none."""

import pytest

import pellucid
from browser import Tab

PROMPT = "The capital of France is"
PATHS = ("embed", "start", "layers.0.attn.q", "layers.0.attn.k", "layers.0.attn.v", "layers.0.attn.pattern", "layers.0.out", "norm")
# Of a card: its words, and of each the share of its line's pixels, left of the cells, that have ink.
WORDS = """path => {
  const frame = document.querySelector(`.river [data-path="${path}"] .frame`), canvas = frame.querySelector("canvas");
  const words = (frame.dataset.words ?? "").split(" ").filter(w => w), copy = new OffscreenCanvas(canvas.width, canvas.height);
  const context = copy.getContext("2d", { willReadFrequently: true });
  context.drawImage(canvas, 0, 0);
  const high = canvas.height / Math.max(1, words.length);
  return words.map((w, i) => {
    const { data } = context.getImageData(0, Math.floor(i * high), 20, Math.floor(high));
    return [w, data.some((x, k) => k % 4 === 3 && x > 0)];
  });
}"""


def words(tab: Tab, path: str) -> list[tuple[str, bool]]:
    """Return the words of a card, with whether ink is where they stand."""
    tab.page.locator(f'.river [data-path="{path}"]').scroll_into_view_if_needed()
    tab.page.wait_for_selector(f'.river [data-path="{path}"] [data-drawn]')
    tab.settle()
    return [(word, ink) for word, ink in tab.page.evaluate(WORDS, path)]


def test_few_rows_have_their_words(tab: Tab) -> None:
    pieces = ["The", "·capital", "·of", "·France", "·is"]
    tab.go(prompt=PROMPT)
    for path in PATHS:
        drawn = words(tab, path)
        assert [word for word, _ in drawn] == pieces, path
        assert drawn[1][1] and drawn[3][1]  # the long ones reach to the left edge
    tab.go(prompt=PROMPT, steps=2, step=1)  # of what the cache holds, its earlier rows too
    assert [word for word, _ in words(tab, "layers.0.attn.k")] == [*pieces, "·Paris"]
    assert words(tab, "layers.0.attn.q") == []  # one row


@pytest.mark.parametrize("count", [12, 13])
def test_many_rows_have_none(tab: Tab, count: int) -> None:
    text = " of" * count
    assert len(pellucid.load("pellucid/capitals").ids(text)) == count
    tab.go(prompt=text)
    assert len(words(tab, "layers.0.out")) == (12 if count == 12 else 0)
