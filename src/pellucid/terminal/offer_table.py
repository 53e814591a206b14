"""Offers as a table: for each device and format the fewest that serve the users, or what even many lack."""

from collections.abc import Mapping, Sequence

from pellucid.counting.offers import Demand, Offer
from pellucid.documents.amount import Amount
from pellucid.documents.number import count
from pellucid.messages import say
from pellucid.terminal.grid import Cell, Grid

LACKS = {
    "": "count.offers.yes", "memory": "count.offers.memory",
    "first": "count.offers.late.first", "between": "count.offers.late.between",
}  # fmt: skip


def offer_table(model: str, context: int, demand: Demand, choices: Sequence[Offer], prices: Mapping[str, float]) -> Grid:
    """Make the table of a model's offers, in their order. prices: an hour's, by device; without them there is no column of prices."""
    header = [
        say("count.offers.device"), say("count.offers.weights"), say("count.offers.number"), say("count.offers.split"),
        say("count.offers.verdict"), say("count.offers.held"), say("count.offers.most"), say("count.offers.first"),
        say("count.offers.between"), say("count.offers.rate"), *([say("count.offers.price")] if prices else []),
    ]  # fmt: skip
    title = say("count.offers", model=model, users=count(demand.users), context=count(context))
    note = say("count.offers.note", efficiency=f"{demand.efficiency:g}")
    return Grid(title, header, [row(o, prices) for o in choices], [note])


def row(o: Offer, prices: Mapping[str, float]) -> list[Cell]:
    """Return the cells of an offer."""
    split = " ".join(f"{name} {n}" for name, n in (("tp", o.split.tp), ("pp", o.split.pp), ("ep", o.split.ep)) if n > 1) or "–"
    cells: list[Cell] = [o.name, o.weights, o.split.ranks, split, say(LACKS[o.lacks]), Amount(o.fullest, "B")]
    cells += [say("count.any") if o.most is None else o.most, Amount(o.first, "s"), Amount(o.between, "s"), Amount(float(o.rate))]
    if prices:
        cells.append(Amount(float(o.price(prices[o.name]))) if o.name in prices else None)
    return cells
