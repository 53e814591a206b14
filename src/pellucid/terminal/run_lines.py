"""A run as lines of a terminal: the pieces, a line a tensor, the candidates, the choice, and a legend.

The table is laid out once for all its lines, from their cells and the terminal's width; at 80 columns a formula may end in "…".
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.text import Text

from pellucid.checkpoint.default_dtype import name_of
from pellucid.counting.weights import Weight, legend, parameters
from pellucid.documents.notation import notes, sentences
from pellucid.documents.number import count, number, percent, shape
from pellucid.documents.run import blocks
from pellucid.documents.run_view import RunView, StepView, TensorView, folded
from pellucid.errors import UseError
from pellucid.messages import say
from pellucid.runs.answers import Answer, piece_of, tokenizer_of, visible
from pellucid.terminal.heatmap import heat
from pellucid.terminal.sparkline import bar, strip
from pellucid.terminal.table import Cell, Column, clipped, cut, line, measure, prose, table, titled, widths

NARROW = 100  # columns of a terminal from which on there are two spaces between cells
WIDE = 118  # columns from which on weights have a column of their own
STRIP = (8, 32)  # least and greatest width of a picture
PIECES = (12, 4)  # shown pieces at the start and the end of a long prompt
TITLE, DIM, NAME, MARK = "bold", "dim", "cyan", "yellow"


@dataclass(frozen=True)
class Display:
    """The settings of `explain`'s lines. layers: to unfold.  head: to show.  everything: True folds nothing.  legend: at the end."""

    width: int = 80
    colour: bool = False
    layers: tuple[int, ...] = ()
    head: int | None = None
    everything: bool = False
    legend: bool = True


Entry = tuple[list[Cell], TensorView] | Text  # a row of the table and the line whose picture it has, or a heading


def story(run: RunView, display: Display) -> list[Text]:
    """Write all lines of `explain`. Raises UseError for a head that the model does not have."""
    if display.head is not None and not 0 <= display.head < run.heads:
        raise UseError("explain.head", found=display.head, last=run.heads - 1)
    hidden = folded(run, display.layers or ((0,) if display.head is not None else ()), display.everything)
    out = [*header(run, display.width), Text(), *pieces(run, display)]
    for index, step in enumerate(run.steps):
        out.append(Text())
        shown = hidden if index == 0 or display.everything else set(run.blocks())
        if index:
            out += [fed(run, step, index), Text()]
        entries = list(rows(run, step, shown, display))
        out += laid(entries, display)
        if display.head is not None and index == 0:
            out += patterns(run, step, hidden, display)
        out += [Text(), *verdict(run, step, display)]
    if display.legend:
        out += [Text(), *footer(run, display, hidden)]
    return clipped(out, display.width)


def header(run: RunView, width: int) -> Iterator[Text]:
    """Yield the model in a line, with its dtype and the reason for it, in a second line if the first would be too long."""
    m = run.model
    facts = [m.family.name, say("explain.layers", count=len(m.config.layers)), say("explain.parameters", count=count(m.num_parameters()))]
    full = Text.assemble((m.name, TITLE), ("  " + " · ".join([*facts, m.precision_note]), DIM))
    if full.cell_len <= width:
        yield full
    else:
        yield from titled(m.name, " · ".join([*facts, name_of(m.dtype)]), width)
        yield from prose(m.precision_note, width, DIM, 2)


def pieces(run: RunView, display: Display) -> list[Text]:
    """Write the prompt's pieces: position, piece, id, bytes."""
    titles = [say("explain.position"), say("explain.piece"), say("explain.id"), say("explain.bytes")]
    columns = [Column(">", style=DIM), Column(most=max(20, display.width // 3), style=NAME), Column(">"), Column(style=DIM)]
    every = [[str(i), visible(p), str(p.id), p.raw.hex(" ")] for i, p in enumerate(run.pieces)]
    first, last = PIECES
    left = len(every) - first - last
    if left > 1 and not display.everything:
        every = [*every[:first], ["…", say("explain.more", count=left), "", ""], *every[-last:]]
    return table([[Text(t, DIM) for t in titles], *every], columns)


def fed(run: RunView, step: StepView, index: int) -> Text:
    """Write the tokens fed to a later step."""
    tokens = " ".join(named(run, i) for i in step.fed)
    sentence = say("explain.fed", token=tokens, before=step.cached, after=step.cached + len(step.fed))
    return Text.assemble((say("explain.step", step=index), TITLE), ("  " + sentence, DIM))


def named(run: RunView, id: int) -> str:
    """Write a token as its piece and id."""
    text = visible(piece_of(tokenizer_of(run.model), id))
    return f"{text} ({id})" if text else f"({id})"


def rows(run: RunView, step: StepView, hidden: set[str], display: Display) -> Iterator[Entry]:
    """Yield the table's rows in order, blocks under headings, folded blocks as the line of their output."""
    parameters = {b["path"]: b["parameters"] or 0 for b in blocks(run.run)}
    for block, group in groupby(step.tensors, key=lambda one: one.block):
        lines = list(group)
        if block in hidden:
            summary = say("explain.tensors", count=len(lines))
            if display.width >= WIDE:
                summary += ", " + say("explain.parameters", count=count(parameters[block]))
            yield entry(lines[-1], display, folded=summary)
            continue
        if block:
            summary = say("explain.parameters", count=count(parameters[block]))
            yield Text.assemble((f" {block}", TITLE), ("  " + summary, DIM))
        for one in lines:
            yield entry(one if display.head is None else one.of_head(display.head, run.heads), display)
            if display.everything:
                yield from (weight(w) for w in sources(one))


def sources(one: TensorView) -> tuple[Weight, ...]:
    """Return the weights of a line's own cell; one that makes several tensors is named at the first."""
    return one.own


def entry(one: TensorView, display: Display, folded: str | None = None) -> Entry:
    """Return a line's cells: name, axes, formula, weights, then least, mean, greatest. folded: the summary of a folded block."""
    name = one.seen.path if folded is not None else one.name
    own = [w for w in sources(one) if w.parameter]
    sizes = " + ".join(shape(w.shape) for w in own)
    total = count(parameters(own))
    weighing = "" if not own or folded is not None else total if sizes.isdigit() else f"{sizes} = {total}"
    made = Text(one.made) + mark(one) if folded is None else Text(folded, DIM)
    cells: list[Cell] = [Text(f"{'  ' if one.block and folded is None else ' '}{name}", NAME), one.sizes, made, weighing]
    return [*cells, *(("",) * 3 if one.value.is_meta else map(number, one.range))], one


def mark(one: TensorView) -> Text:
    """Return the mark of a value that was not executed: "≈" and the error if recomputed, "[edited]", "[reference]"."""
    s = one.seen
    if s.source == "recomputed":
        return Text(" ≈" if s.error is None else f" ≈{number(s.error)}", MARK)
    return Text("" if s.source == "executed" else f" [{s.source}]", MARK)


def weight(w: Weight) -> Text:
    """Write a weight's own line, for `everything`."""
    return Text.assemble((f"      {w.path}", NAME), (f"  {w.axes}  = {count(w.count)}  {w.dtype}", DIM))


def laid(entries: Sequence[Entry], display: Display) -> list[Text]:
    """Lay out the table: every column at its own width, formulas and pictures in the remaining width."""
    wide, gap = display.width >= WIDE, 2 if display.width >= NARROW else 1
    titles: list[Cell] = [Text(t, DIM) for t in column_titles()]
    body = [e[0] for e in entries if not isinstance(e, Text)]
    columns = [Column(most=max(16, display.width // 5)), Column(style=DIM), Column(), Column(">", style=DIM), *[Column(">")] * 3]
    need = widths([*body, [t for i, t in enumerate(titles) if i != 4]], columns)
    if not wide:
        need[3] = 0
    spare = left(need, display.width, gap)
    if spare < 2 * STRIP[0]:  # too narrow for all
        need[1] = 0
        spare = left(need, display.width, gap)
    picture = max(STRIP[0], min(STRIP[1], spare - need[2]))
    need[2] = max(8, min(need[2], spare - picture))
    sizes, sides = [*need[:4], picture, *need[4:]], [*columns[:4], Column(), *columns[4:]]
    out = [line(titles, sides, sizes, gap)]
    for e in entries:
        if isinstance(e, Text):
            out.append(e)
        else:
            cells, one = e
            cells[2] = squeezed(cells[2], one, need[2])
            out.append(line([*cells[:4], strip(one.value, one.dims, picture, display.colour), *cells[4:]], sides, sizes, gap))
    return out


def left(need: Sequence[int], width: int, gap: int) -> int:
    """Return the width that the other columns leave for formulas and pictures."""
    return width - sum(need) + need[2] - gap * len([n for n in need if n])


def squeezed(made: Cell, one: TensorView, width: int) -> Cell:
    """Shorten a formula to `width`: drop its spaces, then cut it before its mark."""
    if measure(made) <= width or str(made) != one.made + mark(one).plain:
        return made
    signs = mark(one)
    return cut(re.sub(r" ([·+−/]) ", r"\1", one.made), width - signs.cell_len) + signs


def column_titles() -> list[str]:
    """Return the titles of the table's columns."""
    return [
        " " + say("explain.tensor"), say("explain.axes"), say("explain.made"), say("explain.weights"),
        say("explain.picture"), say("explain.min"), say("explain.mean"), say("explain.max"),
    ]  # fmt: skip


def patterns(run: RunView, step: StepView, hidden: set[str], display: Display) -> list[Text]:
    """Draw one head's attention in each unfolded block: a table of shares, queries down, keys across."""
    out: list[Text] = []
    for one in step.tensors:
        if display.head is None or one.block in hidden or not one.name.endswith("pattern"):
            continue
        source = [visible(p) or str(p.id) for p in run.pieces]
        own = [named(run, i).rpartition(" (")[0] or str(i) for i in step.fed]
        queries = source if one.block.startswith("encoder") else own
        keys = source if one.block.startswith("encoder") or ".cross" in f".{one.name}" else own
        share = one.of_head(display.head, run.heads).value[0]
        title = say("explain.pattern", path=one.seen.path, head=display.head)
        out += [Text(), Text(" " + title, TITLE), *heat(share, queries, keys, display.width, display.colour)]
    return out


def verdict(run: RunView, step: StepView, display: Display) -> Iterator[Text]:
    """Yield the candidates for the next token, or for each blank, or a sentence for a model with neither."""
    if run.model.device.type == "meta":
        yield from prose(say("explain.shapes"), display.width, DIM)
    elif not step.answers:
        yield from prose(say("explain.rows" if not run.model.config.head else "explain.blankless"), display.width, DIM)
    if (broken := run.run.first_nan) is not None and step is run.steps[-1]:
        yield from prose(say("run.nan", path=broken.path, step=broken.step), display.width, TITLE)
        return
    for place, answer in enumerate(step.answers):
        yield from ([Text()] if place else [])
        yield from choice(run, answer, display)


def choice(run: RunView, answer: Answer, display: Display) -> list[Text]:
    """Write the candidates with their probabilities, and the chosen one."""
    titles = [say("explain.piece"), say("explain.id"), say("explain.logit"), say("explain.probability"), ""]
    columns = [Column(most=display.width // 3, style=NAME), Column(">"), Column(">"), Column(">"), Column(style="green")]
    most = max(8, min(40, display.width - 48))
    body = [[visible(c.piece), str(c.id), number(c.logit), percent(c.probability), bar(c.probability, most)] for c in answer.candidates]
    vocab, blank = count(run.model.config.vocab), answer.row >= 0
    title = say("explain.blank", row=answer.row, count=vocab) if blank else say("explain.candidates", count=vocab)
    out = [Text(" " + title, TITLE)]
    out += table([[Text(t, DIM) for t in titles], *body], columns)
    values = {"token": visible(answer.picked.piece), "id": answer.picked.id, "probability": percent(answer.picked.probability)}
    sentence = say("explain.fills", **values) if blank else say("explain.pick", **values)
    return [*out, Text(), Text.assemble((" → ", "green"), (sentence, TITLE))]


def notation(run: RunView, hidden: set[str]) -> list[str]:
    """Explain the signs of the shown formulas, each once."""
    dims = {s.path: s.dims for s in run.trace}
    shown = (one for one in run.steps[0].tensors if one.block not in hidden)
    return sentences([note for one in shown for note in notes(one.seen, dims, one.made)])


def footer(run: RunView, display: Display, hidden: set[str]) -> Iterator[Text]:
    """Yield the legend: the axes' letters, the formulas' signs, and further commands."""
    used = legend([one.dims for m in run.steps for one in m.tensors])
    body: list[list[Cell]] = [[Text(letter, TITLE), say(f"axis.{letter}")] for letter in used if letter != "B"]
    if display.width >= WIDE:
        half = -(-len(body) // 2)
        body = [[*body[i], *(body[i + half] if i + half < len(body) else ["", ""])] for i in range(half)]
    yield from table(body, [Column(), Column(style=DIM)] * (len(body[0]) // 2))
    yield Text()
    yield Text(" " + say("explain.notation"), DIM)
    for sentence in notation(run, hidden):
        yield from prose(sentence, display.width, DIM, 3)
    closing = [say("explain.picture.colour" if display.colour else "explain.picture.shades")]
    errors = [one.seen.error for m in run.steps for one in m.tensors if one.seen.error is not None]
    if errors:
        closing.append(say("explain.recomputed", largest=number(max(errors))))
    closing.append(say("explain.further"))
    yield Text()
    for sentence in closing:
        yield from prose(sentence, display.width, DIM)
