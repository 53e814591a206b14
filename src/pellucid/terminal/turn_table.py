"""A conversation by turn as a table: what each reads with and without a cached prefix."""

from collections.abc import Sequence

from pellucid.counting.conversation_turns import ConversationTurn
from pellucid.documents.amount import Amount
from pellucid.messages import say
from pellucid.terminal.grid import Cell, Grid


def turn_table(model: str, every: Sequence[ConversationTurn], device: str | None) -> Grid:
    """Make the table of a conversation's turns, and their sums."""
    header = [
        say("count.turns.turn"), say("count.turns.before"), say("count.turns.read"), say("count.turns.kept"), say("count.turns.again"),
        say("count.turns.cache"),
    ]  # fmt: skip
    header += [] if device is None else [say("count.turns.least"), say("count.turns.least_again")]
    rows = [row(str(t.number), t) for t in every]
    sums: list[Cell] = [say("count.turns.all"), None, sum(t.read for t in every), Amount(sum(t.kept for t in every), "FLOP")]
    sums += [Amount(sum(t.again for t in every), "FLOP"), None]
    if device is not None:
        sums += [Amount(sum(t.least or 0.0 for t in every), "s"), Amount(sum(t.least_again or 0.0 for t in every), "s")]
    return Grid(say("count.turns", model=model, turns=len(every)), header, [*rows, sums], [say("count.turns.note")])


def row(name: str, t: ConversationTurn) -> list[Cell]:
    """Return the cells of one turn."""
    cells: list[Cell] = [name, t.before, t.read, Amount(t.kept, "FLOP"), Amount(t.again, "FLOP"), Amount(t.cache, "B")]
    return cells + ([] if t.least is None or t.least_again is None else [Amount(t.least, "s"), Amount(t.least_again, "s")])
