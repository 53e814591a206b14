"""A row of numbers as a small picture: the first token above, the last below, each cell the largest magnitude of its range.

With colour a cell is blue below 0, white at 0, red above; without colour ' ░▒▓█' show the magnitudes of the last token.
"""

from itertools import pairwise

from rich.color import Color
from rich.style import Style
from rich.text import Text
from torch import Tensor

SHADES = " ░▒▓█"
BLUE, WHITE, RED = (33, 102, 172), (247, 247, 247), (178, 24, 43)
ROWS = "TNS"  # the axes whose first and last row are shown, by preference


def ends(value: Tensor, dims: str) -> tuple[Tensor, Tensor]:
    """Return the first and the last token's numbers, flat; for a tensor without tokens, all numbers twice."""
    axes = dims.split()
    at = next((axes.index(letter) for letter in ROWS if letter in axes[:-1]), None)
    if at is None:
        return value.flatten(), value.flatten()
    return value.select(at, 0).flatten(), value.select(at, -1).flatten()


def cells(row: Tensor, width: int) -> list[float]:
    """Reduce row [n] to `width` cells, each the number of largest magnitude in its range. Fewer numbers than cells repeat.

    cells([1, -3, 2, 0], 2) is [-3, 2]
    """
    n = row.numel()
    if n == 0:
        return [0.0] * width
    row = row.double().nan_to_num(0.0, 0.0, 0.0)
    edges = [i * n // width for i in range(width + 1)]
    parts = (row[a : max(b, a + 1)] for a, b in pairwise(edges))
    return [float(p[p.abs().argmax()]) for p in parts]


def strip(value: Tensor, dims: str, width: int, colour: bool) -> Text:
    """Draw a tensor, `width` characters wide; on meta, blank."""
    if value.is_meta:
        return Text(" " * width)
    above, below = (cells(row, width) for row in ends(value, dims))
    if not colour:
        return Text("".join(shade(x, max(map(abs, below))) for x in below))
    high, low = (max(map(abs, row)) for row in (above, below))  # each to its own: a first token is often a hundred times the last
    drawn = Text()
    for a, b in zip(above, below, strict=True):
        drawn.append("▀", Style(color=tint(a, high), bgcolor=tint(b, low)))
    return drawn


def shade(x: float, top: float) -> str:
    """Return one of five shades by |x| / top; below a twentieth it is blank."""
    part = abs(x) / top if top else 0.0
    return SHADES[0 if part < 0.05 else 1 + min(3, int(part * 4))]


def tint(x: float, top: float) -> Color:
    """Return the colour of x between -top and top."""
    part = min(1.0, abs(x) / top) if top else 0.0
    end = RED if x > 0 else BLUE
    return Color.from_rgb(*(round(w + (e - w) * part) for w, e in zip(WHITE, end, strict=True)))


def bar(part: float, width: int) -> str:
    """Draw a bar in eighths: bar(0.5, 4) is two full blocks; of NaN nothing."""
    eighths = 0 if part != part else round(max(0.0, min(1.0, part)) * width * 8)
    return "█" * (eighths // 8) + (" ▏▎▍▌▋▊▉"[eighths % 8] if eighths % 8 else "")
