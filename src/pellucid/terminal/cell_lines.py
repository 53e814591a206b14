"""A cell's terms as lines of a terminal: its factors and summands, their sum, and the model's own number."""

from collections.abc import Mapping

from rich.text import Text

from pellucid.documents.cell import Cell, shortened
from pellucid.documents.cell_parts import CellPartsDocument
from pellucid.documents.formula import formula
from pellucid.documents.notation import notes, sentences
from pellucid.documents.number import count, number
from pellucid.documents.summands import labels, put, template, values
from pellucid.messages import say
from pellucid.terminal.table import Column, clipped, line, prose, widths

ENDS = 6  # summands shown at each end


def account(c: Cell, dims: Mapping[str, str], width: int, everything: bool = False) -> list[Text]:
    """Write the lines of `explain --cell`. dims: the axes of the run's records, by path."""
    made, label = formula(c.seen, dims), labels(c.seen, dims)
    names = [label(name) for name in c.terms.factors]
    first, last = shortened(products := len(c.rows) - len(c.terms.added), products if everything else ENDS)
    title = Text.assemble((f"{c.seen.path}[{', '.join(map(str, c.index))}]", "bold"), (f"  {c.place}", "dim"))
    out = [title, Text(f" = {made}", "cyan") if made else Text()]
    if substituted := put(template(c.seen), values(c.terms)):
        out.append(Text(f" = {substituted}", "cyan"))
    out += [*(line for note in sentences(notes(c.seen, dims)) for line in prose(note, width, "dim")), Text()]
    body = [written(c, i) for i in (*first, *last)]
    columns = [Column(">", style="dim"), *[Column(">")] * (2 * len(names))]
    titles = [Text(t, "dim") for t in ["", *(part for n in names for part in (n, "")), say("cell.summand")]]
    between = [*[""] * (len(titles) - 3), "="] if names else []
    body += [[label(name), *between, number(x)] for name, x in c.terms.added.items()]
    sizes = widths([titles, *body], [*columns, Column(">")])
    rows = [line(titles, [*columns, Column(">")], sizes, 1, 1), *(line(r, [*columns, Column(">")], sizes, 1, 1) for r in body)]
    if last:
        left = [c.rows[i][1] for i in range(len(first), last.start)]
        rows.insert(1 + len(first), Text("   " + say("cell.between", count=count(len(left)), sum=number(sum(left))), "dim"))
    out += [*rows, Text(), Text(" " + chain(c, [*first], [*last, *range(products, len(c.rows))])), Text()]
    total = say("cell.total", count=count(len(c.rows)), total=precise(c.total)) if len(c.rows) > 1 else ""
    out.append(Text(" " + (total or say("cell.product", total=precise(c.total))), "bold"))
    out.append(Text(" " + say("cell.value", value=precise(c.value), difference=number(abs(c.total - c.value)))))
    return clipped(out, width)


def made_of(made: CellPartsDocument, width: int) -> list[Text]:
    """Write the largest parts of a cell, their sum, and what was taken as constant."""
    out = [Text(), Text(" " + say("page.made.parts", count=count(made["count"])), "bold")]
    body = [[number(part["value"] or 0.0), part["text"]] for part in made["parts"]]
    sizes = widths(body, [Column(">"), Column()])
    out += [line(row, [Column(">"), Column()], sizes, 1, 1) for row in body]
    out.append(Text(" " + say("page.made.parts.sum", total=precise(made["total"] or 0.0), value=precise(made["value"] or 0.0))))
    if made["notes"]:
        out.append(Text(" " + say("page.made.parts.constant", what=", ".join(made["notes"])), "dim"))
    return clipped(out, width)


def written(c: Cell, i: int) -> list[str]:
    """Write a summand's row: its index, its factors with signs between, its product."""
    factors, summand = c.rows[i]
    cells = [str(i)]
    for n, f in enumerate(factors):
        cells += (["×"] if n else []) + [number(f)]
    return [*cells, "=", number(summand)]


def chain(c: Cell, first: list[int], last: list[int]) -> str:
    """Write the sum on one line: 0.31 - 1.20 + … + 0.02 = 2.41."""
    shown = [*first, *last]
    numbers = [number(c.rows[i][1]) for i in shown[:3]] + (["…"] if len(c.rows) > 6 else [])
    numbers += [number(c.rows[i][1]) for i in shown[3:][-3:]]
    joined = " + ".join(numbers).replace("+ -", "− ")
    return f"{joined} = {number(c.total)}"


def precise(x: float) -> str:
    """Write a number with nine figures, which tell a float32 from its neighbours."""
    return f"{x:.9g}"
