"""Reading and writing on separate machines as a table, beside both on one."""

from collections.abc import Mapping

from pellucid.counting.reading_apart import SeparateMachines
from pellucid.documents.amount import Amount
from pellucid.documents.number import count, percent
from pellucid.messages import say
from pellucid.terminal.grid import Cell, Grid


def apart_table(model: str, context: int, estimate: SeparateMachines, reads: str, writes: str, prices: Mapping[str, float]) -> Grid:
    """Make the table. reads, writes: names of devices.  prices: an hour's, by device; without both there is no row of prices."""
    header = ["", say("count.apart.reads"), say("count.apart.writes"), say("count.apart.together")]
    a = estimate
    rows: list[list[Cell]] = [
        [say("count.apart.machine"), *(f"{a.ranks} × {name}" for name in (reads, writes, writes))],
        [say("count.apart.request"), *(Amount(s, "s") for s in (a.read, a.write, a.together))],
        [say("count.apart.rate"), *(Amount(1 / s) for s in (a.read, a.write, a.together))],
        [say("count.apart.share"), percent(a.share), percent(1 - a.share), None],
        [say("count.apart.first"), Amount(a.read, "s"), Amount(a.read + (a.over or 0.0), "s"), Amount(a.read_together, "s")],
        [say("count.apart.between"), None, Amount(a.step, "s"), Amount(a.between, "s")],
        [say("count.apart.longest"), None, Amount(a.step, "s"), Amount(a.step + a.read_together, "s")],
        [say("count.apart.sent"), Amount(a.sent, "B"), None, None],
        [say("count.apart.over"), None if a.over is None else Amount(a.over, "s"), None, None],
    ]
    if reads in prices and writes in prices:
        seconds = ((a.read, prices[reads]), (a.write, prices[writes]), (a.together, prices[writes]))
        rows.append([say("count.apart.price"), *(Amount(a.ranks * s * hour / 3.6) for s, hour in seconds)])
    title = say("count.apart", model=model, context=count(context), written=count(a.written), batch=count(a.batch))
    return Grid(title, header, rows, [say("count.apart.note")])
