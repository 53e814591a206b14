"""Two runs side by side as lines of a terminal: both answers, the first tensor that differs, and how far the others are."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest

from rich.text import Text

from pellucid.analysis.by_axis import along, loads
from pellucid.analysis.compare import AnswerDifference, Comparison, TensorDifference
from pellucid.analysis.depth import Depth
from pellucid.api.model import Model
from pellucid.documents.formula import block
from pellucid.documents.number import number, percent
from pellucid.messages import say
from pellucid.runs.answers import best_candidates, tokenizer_of, visible
from pellucid.terminal.sparkline import bar
from pellucid.terminal.table import Cell, Column, clipped, prose, table
from pellucid.watching.records import has_nan

TITLE, DIM, NAME = "bold", "dim", "cyan"
BAR = 16  # characters of a bar


@dataclass(frozen=True)
class Side:
    """One of the two runs: its model, and what differs in it, as text."""

    model: Model
    about: str


@dataclass(frozen=True)
class Detail:
    """What of a comparison is written. everything: every tensor, not the last of each block alone.  by: the letter of an axis, or ""."""

    best: int
    width: int
    everything: bool = False
    by: str = ""


def comparison(c: Comparison, sides: Sequence[Side], detail: Detail, depth: Sequence[Depth] = ()) -> list[Text]:
    """Write both answers and the tensors that differ."""
    out, width = list[Text](), detail.width
    if not c.answers:
        out += [*prose(say("explain.rows" if not sides[0].model.config.head else "explain.blankless"), width, DIM), Text()]
    for one in c.answers:
        out += [*answers(one, sides, detail.best, width), Text()]
    for letter, s in zip("AB", c.nans, strict=True):
        if s is not None:
            out += [*prose(f"{letter}  {say('run.nan', path=s.path, step=s.step)}", width, TITLE), Text()]
    out += first(c, width)
    if c.pairs is not None:
        out += prose(compared_rows(c), width, DIM)
    out += tensors(c, width, detail.everything)
    if detail.by:
        out += [Text(), *prose(say("try.by.T") if detail.by == "T" else say("try.by.H"), width, TITLE), *by_axis(c, detail)]
    if chosen := loads(c):
        out += [Text(), *prose(say("try.loads"), width, TITLE), *load_table(chosen)]
    if depth:
        out += [Text(), *prose(say("try.depth"), width, TITLE), *depths(depth)]
    for n, own in enumerate((c.only_a, c.only_b)):
        if own:
            out += prose(say("try.only", side="AB"[n], paths=", ".join(own[:6]) + (", …" if len(own) > 6 else "")), width, DIM)
    return clipped(out, width)


def each_answer(compared: Sequence[Comparison], models: Sequence[Model], width: int) -> list[Text]:
    """Write a line for each of several prompts and steps: the likeliest token of both runs, with its share, and KL(A‖B)."""
    titles: list[Cell] = [Text(t, DIM) for t in (say("batch.prompt"), "A", "", "B", "", "KL(A‖B)")]
    cells: list[list[Cell]] = []
    for c in compared:
        prompt = c.a.prompt if c.a.prompt is not None else " ".join(map(str, c.a.ids))
        for n, one in enumerate(c.answers):
            sides: list[Cell] = []
            for model, logits in zip(models, one.logits, strict=True):
                best = [] if has_nan(logits) else best_candidates(tokenizer_of(model), logits, 1)
                sides += [visible(best[0].piece) or str(best[0].id), percent(best[0].probability)] if best else ["", ""]
            cells.append([prompt if n == 0 else "", *sides, number(one.divergence)])
    columns = [Column(most=width // 2), *[Column(style=NAME), Column(">")] * 2, Column(">")]
    return clipped(table([titles, *cells], columns), width)


def compared_rows(c: Comparison) -> str:
    """Say which rows of both prompts were compared, and how many have no partner."""
    runs: list[list[tuple[int, int]]] = []
    for pair in c.rows:
        if runs and pair[0] == runs[-1][-1][0] + 1 and pair[1] == runs[-1][-1][1] + 1:
            runs[-1].append(pair)
        else:
            runs.append([pair])
    ranges = "; ".join(f"A {spanned(r[0][0], r[-1][0])} = B {spanned(r[0][1], r[-1][1])}" for r in runs)
    return say("try.rows", rows=ranges, a=len(c.a.ids) - len(c.rows), b=len(c.b.ids) - len(c.rows))


def spanned(first: int, last: int) -> str:
    """Write a range of rows: "3" or "1 … 4"."""
    return str(first) if first == last else f"{first} … {last}"


def by_axis(c: Comparison, detail: Detail) -> list[Text]:
    """Write how far each tensor is at each index of an axis, in percent; 0 is exactly 0."""
    values = along(c, detail.by)
    own = [list(group) for _, group in groupby(values, key=lambda path: block(path)[0])]
    paths = [path for group in own for path in (group if detail.everything or detail.by != "T" or not block(group[0])[0] else group[-1:])]
    most = max((len(values[path]) for path in paths), default=0)
    heads = [f"{detail.by} {i}" for i in range(most)] if detail.by != "T" else [row_name(c, i) for i in range(most)]
    titles: list[Cell] = [Text(t, DIM) for t in (say("try.tensor"), *heads)]
    cells: list[list[Cell]] = [[path, *(percent(v) if v else "0" for v in values[path])] for path in paths]
    return table([titles, *([*row, *[""] * (most + 1 - len(row))] for row in cells)], [Column(style=NAME), *[Column(">")] * most])


def row_name(c: Comparison, i: int) -> str:
    """Write a compared row: its position in A, and in B where it moved."""
    a, b = c.rows[i] if i < len(c.rows) else (i, i)
    return str(a) if a == b else f"{a} → {b}"


def load_table(chosen: Mapping[str, tuple[list[int], list[int]]]) -> list[Text]:
    """Write how many of the rows' choices fell on each expert, in both runs."""
    most = max(len(a) for a, _ in chosen.values())
    titles: list[Cell] = [Text(t, DIM) for t in (say("try.tensor"), "", *(f"E {i}" for i in range(most)))]
    rows: list[list[Cell]] = []
    for path, both in chosen.items():
        rows += [
            [path if side == "A" else "", side, *map(str, own), *[""] * (most - len(own))] for side, own in zip("AB", both, strict=True)
        ]
    return table([titles, *rows], [Column(style=NAME), Column(), *[Column(">")] * most])


def answers(one: AnswerDifference, sides: Sequence[Side], best: int, width: int) -> Iterator[Text]:
    """Yield the likeliest tokens of both runs at a step, side by side."""
    columns, cells = [Column(most=max(12, width // 4), style=NAME), Column(">"), Column()], list[list[list[Cell]]]()
    for side, logits in zip(sides, one.logits, strict=True):
        shown = [] if has_nan(logits) else best_candidates(tokenizer_of(side.model), logits, best)
        cells.append([[visible(c.piece) or str(c.id), percent(c.probability), bar(c.probability, BAR)] for c in shown])
    titles: list[Cell] = [Text(f"{'AB'[n]}  {side.about}", TITLE) for n, side in enumerate(sides)]
    yield from table([titles], [Column(most=width // 2 - 2), Column()], gap=4)
    absent: list[Cell] = ["NaN", "", ""]  # where the logits are no numbers
    yield from table([[*a, "   ", *b] for a, b in zip_longest(*cells, fillvalue=absent)], [*columns, Column(), *columns])
    yield Text(" " + say("try.divergence", step=one.step, nats=number(one.divergence)), DIM)


def first(c: Comparison, width: int) -> list[Text]:
    """Say which tensor differs first, and where most."""
    changed = [t for t in c.tensors if t.changed]
    if not changed:
        return prose(say("try.equal", count=len(c.tensors)), width, TITLE)
    one = changed[0]
    place = f"{one.path}[{', '.join(map(str, one.index))}]"
    a, b = map(number, one.values)
    if a == b:  # to the digits that are usually shown
        a, b = map(repr, one.values)
    return prose(say("try.first", place=place, changed=len(changed), count=len(c.tensors), a=a, b=b), width, TITLE)


def tensors(c: Comparison, width: int, everything: bool) -> list[Text]:
    """Write how far each tensor of the first step is, folded to the last tensor of each block."""
    own = [t for t in c.tensors if t.step == c.tensors[0].step and t.call == 0]
    groups = [list(group) for _, group in groupby(own, key=lambda t: block(t.path)[0])]
    shown = own if everything else [t for group in groups for t in (group if not block(group[0].path)[0] else group[-1:])]
    columns = [Column(style=NAME), Column(">"), Column(), Column(">"), Column(">", style=DIM)]
    titles = [say("try.tensor"), say("try.relative"), "", say("try.largest"), say("try.cell")]
    return table([[Text(t, DIM) for t in titles], *map(row, shown)], columns)


def depths(depth: Sequence[Depth]) -> list[Text]:
    """Write both runs by depth: length, likeness and gradient, each of A and of B."""
    about = [say("try.depth.size"), say("try.depth.likeness"), say("try.depth.gradient")]
    titles: list[Cell] = [Text(t, DIM) for t in (say("try.tensor"), *(f"{name} {side}" for name in about for side in "AB"))]
    cells = [[d.path, *("" if v is None else number(v) for v in (*d.size, *d.likeness, *d.gradient))] for d in depth]
    return table([titles, *cells], [Column(style=NAME), *[Column(">")] * 6])


def row(t: TensorDifference) -> list[Cell]:
    """Write one tensor: its relative difference with a bar, its largest, and the cell that has it."""
    if not t.changed:
        return [t.path, Text(say("try.unchanged"), DIM), "", "", ""]
    relative = "" if t.relative is None else percent(t.relative)
    return [t.path, relative, bar(min(1.0, t.relative or 0.0), BAR), number(t.largest), f"[{','.join(map(str, t.index))}]"]
