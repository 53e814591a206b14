"""A sweep, and the scores of heads, as lines of a terminal: a table of numbers, the further from the base the darker."""

import itertools

from rich.style import Style
from rich.text import Text

from pellucid.analysis.heads import SCORES, HeadScores
from pellucid.api.sweep import Sweep
from pellucid.documents.number import number, percent
from pellucid.messages import say
from pellucid.terminal.sparkline import shade, tint
from pellucid.terminal.table import Cell, Column, clipped, prose, table

TITLE, DIM, NAME = "bold", "dim", "cyan"


def sweep(s: Sweep, best: int, width: int, colour: bool) -> list[Text]:
    """Write the numbers of a sweep: rows are tensors and the axes but the last, columns the last axis."""
    clean = "" if s.clean is None else say("sweep.clean", value=number(s.clean))
    out = prose(say("sweep.base", metric=s.metric, value=number(s.base)) + clean, width, TITLE)
    most = float((s.values - s.base).abs().nan_to_num(0.0).max())
    columns = s.pieces if s.by[-1] == "T" else [str(i) for i in range(s.values.shape[-1])]
    shown = max(1, (width - 30) // 9)
    titles: list[Cell] = ["", *(Text("") for _ in s.by[:-1]), *(Text(c, DIM) for c in columns[:shown])]
    rows: list[list[Cell]] = [titles]
    for at in itertools.product(*map(range, s.values.shape[:-1])):
        line = s.values[at]
        labels: list[Cell] = [s.paths[at[0]], *(f"{letter}={i}" for letter, i in zip(s.by[:-1], at[1:], strict=True))]
        rows.append([*labels, *(shaded(float(x), s.base, most, colour) for x in line[:shown])])
    out += table(rows, [Column(style=NAME), *[Column(style=DIM)] * (len(s.by) - 1), *[Column(">", 12)] * len(columns[:shown])], gap=1)
    if len(columns) > shown:
        out += prose(say("sweep.cut", count=len(columns) - shown), width, DIM)
    out += [Text(), Text(" " + say("sweep.best"), TITLE)]
    cells = [[path, ", ".join(f"{k}={v}" for k, v in at.items()), number(x)] for path, at, x in s.best(best)]
    return clipped([*out, *table(cells, [Column(style=NAME), Column(), Column(">")])], width)


def shaded(x: float, base: float, most: float, colour: bool) -> Text:
    """Write a number, tinted by how far it is from the base."""
    far = (x - base) / most if most else 0.0
    if colour:
        return Text(number(x), Style(color="white" if abs(far) > 0.55 else "black", bgcolor=tint(far, 1.0)))
    return Text(f"{shade(far, 1.0)}{number(x)}".strip())


def head_scores(scores: HeadScores, best: int, width: int) -> list[Text]:
    """Write the heads with the largest weight of each score."""
    out: list[Text] = []
    titles = [say("heads.induction"), say("heads.duplicate"), say("heads.previous"), say("heads.first")]
    for name, title in zip(SCORES, titles, strict=True):
        out += prose(title, width, TITLE)
        rows = [[path, f"H={head}", percent(x)] for path, head, x in scores.best(name, best)]
        out += [*table(rows, [Column(style=NAME), Column(), Column(">")]), Text()]
    return clipped(out, width)
