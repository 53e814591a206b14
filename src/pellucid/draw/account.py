"""A cell's terms as lines of a terminal: its factors and summands, the sum, and the number that the model holds."""

from rich.text import Text

from pellucid.draw.cell import Cell, shortened
from pellucid.draw.number import count, number
from pellucid.draw.table import Column, clipped, line, widths
from pellucid.words import say

ENDS = 6  # summands shown at each end


def account(c: Cell, made: str, width: int, everything: bool = False) -> list[Text]:
    """The lines of `explain --cell`."""
    names = list(c.terms.factors)
    first, last = shortened(len(c.rows), len(c.rows) if everything else ENDS)
    title = Text.assemble((f"{c.seen.path}[{', '.join(map(str, c.index))}]", "bold"), (f"  {c.place}", "dim"))
    out = [title, Text(f" = {made}", "cyan") if made else Text(), Text()]
    body = [written(c, i) for i in (*first, *last)]
    columns = [Column(">", style="dim"), *[Column(">")] * (2 * len(names))]
    head = ["", *(part for n in names for part in ("", n))][: 2 * len(names)]
    titles = [Text(t, "dim") for t in [*head, "", say("cell.summand")]]
    sizes = widths([titles, *body], [*columns, Column(">")])
    rows = [line(titles, [*columns, Column(">")], sizes, 1, 1), *(line(r, [*columns, Column(">")], sizes, 1, 1) for r in body)]
    if last:
        left = [c.rows[i][1] for i in range(len(first), last.start)]
        rows.insert(1 + len(first), Text("   " + say("cell.between", count=count(len(left)), sum=number(sum(left))), "dim"))
    out += [*rows, Text(), Text(" " + chain(c, [*first], [*last])), Text()]
    out.append(Text(" " + say("cell.total", count=count(len(c.rows)), total=precise(c.total)), "bold"))
    out.append(Text(" " + say("cell.value", value=precise(c.value), difference=number(abs(c.total - c.value)))))
    return clipped(out, width)


def written(c: Cell, i: int) -> list[str]:
    """A summand's row: its number, its factors with signs between, its product."""
    factors, summand = c.rows[i]
    told = [str(i)]
    for n, f in enumerate(factors):
        told += (["×"] if n else []) + [number(f)]
    return [*told, "=", number(summand)]


def chain(c: Cell, first: list[int], last: list[int]) -> str:
    """The sum on one line: 0.31 - 1.20 + … + 0.02 = 2.41."""
    numbers = [number(c.rows[i][1]) for i in first[:3]] + (["…"] if len(c.rows) > 6 else [])
    numbers += [number(c.rows[i][1]) for i in ([*first, *last][3:][-3:])]
    joined = " + ".join(numbers).replace("+ -", "− ")
    return f"{joined} = {number(c.total)}"


def precise(x: float) -> str:
    """Enough figures to tell a float32 from its neighbour."""
    return f"{x:.9g}"
