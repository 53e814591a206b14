"""A conversation by turn as a table: what each reads with and without a cached prefix."""

from collections.abc import Sequence

from pellucid.counting.conversation import Turn
from pellucid.documents.amount import Amount
from pellucid.messages import say
from pellucid.terminal.grid import Cell, Grid


def turn_table(model: str, said: Sequence[Turn], device: str | None) -> Grid:
    """Make the table of a conversation's turns, and their sums."""
    header = [say(f"count.turns.{name}") for name in ("turn", "before", "read", "kept", "again", "cache")]
    header += [] if device is None else [say("count.turns.least"), say("count.turns.least_again")]
    rows = [row(str(t.number), t) for t in said]
    sums: list[Cell] = [say("count.turns.all"), None, sum(t.read for t in said), Amount(sum(t.kept for t in said), "FLOP")]
    sums += [Amount(sum(t.again for t in said), "FLOP"), None]
    if device is not None:
        sums += [Amount(sum(t.least or 0.0 for t in said), "s"), Amount(sum(t.least_again or 0.0 for t in said), "s")]
    return Grid(say("count.turns", model=model, turns=len(said)), header, [*rows, sums], [say("count.turns.note")])


def row(name: str, t: Turn) -> list[Cell]:
    """Return the cells of one turn."""
    cells: list[Cell] = [name, t.before, t.read, Amount(t.kept, "FLOP"), Amount(t.again, "FLOP"), Amount(t.cache, "B")]
    return cells + ([] if t.least is None or t.least_again is None else [Amount(t.least, "s"), Amount(t.least_again, "s")])
