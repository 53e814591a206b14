"""The bill of a recipe as lines of a terminal: the counts of the run, then the bill of its model."""

from rich.text import Text

from pellucid.distributed import grid
from pellucid.documents.amount import scaled
from pellucid.documents.number import count, number
from pellucid.documents.recipe_bill import RecipeBill
from pellucid.messages import say
from pellucid.terminal.bill import drawn
from pellucid.terminal.table import Cell, Column, table
from pellucid.terminal.training_and_ranks import one_rank

COLUMNS = [Column(), Column(">")]


def drawn_recipe(given: RecipeBill, width: int) -> list[Text]:
    """Write the lines of `count` for a recipe."""
    run, of_rank = given.run(), rank_lines(given)
    if given.steps is None:
        return [*of_rank, *drawn(given.bill, width, given.scenario)]
    exact = given.facts is not None
    rows: list[list[Cell]] = [
        [say("count.recipe.tokens.exact" if exact else "count.recipe.tokens"), count(int(run["tokens"] or 0))],
        [say("count.recipe.flops.exact" if exact else "count.recipe.flops"), scaled(run["flops"] or 0, "FLOP")],
    ]
    if run["hours"] is not None:
        rows.append([say("count.recipe.hours"), number(run["hours"])])
    if run["price"] is not None:
        rows.append([say("count.recipe.price"), number(run["price"])])
    head = Text(say("count.recipe.run", steps=count(given.steps)), "bold")
    return [head, *table(rows, COLUMNS), Text(), *of_rank, *drawn(given.bill, width, given.scenario)]


def rank_lines(given: RecipeBill) -> list[Text]:
    """Write what one of several ranks holds, and sends in a step. [] for one process."""
    counts, r = given.rank(), given.ranks
    if not counts:
        return []
    return [*one_rank(grid(r.data, r.tensor, r.expert, r.shard), counts, given.way.single > 0), Text()]
