"""The labels of pictures: a tile's columns are labelled within it, and a card's rows by whole pieces where there is room."""

import pytest

from browser import Tab
from covering import FULL

# Notes where each label of a canvas begins and ends, and how wide the canvas is.
NOTED = """(() => {
  window.__labels = [];
  const own = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
    const size = this.measureText(text).width, start = { left: x, center: x - size / 2, right: x - size }[this.textAlign] ?? x;
    const width = this.canvas.getBoundingClientRect().width, tile = !!this.canvas.closest("aside");
    window.__labels.push({ text, start, end: start + size, y, width, tile });
    return own.call(this, text, x, y, ...rest);
  };
})();"""
TOP = 9  # px, where the labels of columns stand


VIEWPORTS = ({"width": 1440, "height": 1000}, {"width": 390, "height": 844})


@pytest.mark.parametrize("viewport", VIEWPORTS, ids=["wide", "phone"])
@pytest.mark.quick(2)
def test_the_last_columns_label_is_whole(tab: Tab, viewport: dict[str, int]) -> None:
    """Of texts whose last column has a label, and is narrower than it."""
    tab.page.set_viewport_size(viewport)  # type: ignore[arg-type]
    tab.page.add_init_script(NOTED)
    edges = []
    for tokens in (26, 41, 51, 61) if FULL else (26, 61):
        tab.go(tensor="layers.0.attn.pattern", prompt="#" + " ".join(str(100 + i) for i in range(tokens)))
        tab.settle()
        tab.page.evaluate("window.__labels = []")
        box = tab.page.locator("aside canvas").last.bounding_box()
        assert box is not None
        tab.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)  # the labels are drawn again
        tab.settle()
        labels = [one for one in tab.page.evaluate("window.__labels") if one["tile"] and one["y"] == TOP]
        assert len(labels) > 2
        edges += [one["end"] - one["width"] for one in labels]
    assert -0.01 < max(edges) <= 0.01  # a label stands at the edge, and none goes beyond it


# Of the cards' words that were drawn, by canvas: the text, its width, and the room that a column of words may have.
NOTED_WORDS = """(() => {
  window.__words = [];
  const own = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
    const frame = this.canvas.closest("[data-words]"), wide = this.canvas.width;
    if (frame) {
      const all = frame.dataset.words.split(" "), room = Math.min(Math.max(44, 0.28 * wide), wide / 3) - 5;
      const longest = Math.max(...all.map((word) => this.measureText(word).width));
      window.__words.push({ text, all, room: longest <= room });
    }
    return own.call(this, text, ...rest);
  };
})();"""


def test_pieces_beside_rows_are_whole_where_there_is_room(tab: Tab) -> None:
    tab.page.add_init_script(NOTED_WORDS)
    tab.go("zh", model="pellucid/capitals-deepseek", prompt="法国的首都是")
    tab.settle()
    words = [one for one in tab.page.evaluate("window.__words") if one["room"]]
    assert len({one["text"] for one in words}) >= 4 and any("法国" in one["text"] for one in words)
    assert [one for one in words if one["text"] not in one["all"]] == []
