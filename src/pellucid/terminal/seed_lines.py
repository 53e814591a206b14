"""An effect over several seeds as lines of a terminal: each number's mean and its spread."""

from collections.abc import Sequence

from rich.text import Text

from pellucid.analysis.seed_spread import SeedSpread, SeedValues
from pellucid.documents.number import number, percent
from pellucid.messages import say
from pellucid.terminal.table import Cell, Column, clipped, prose, table

TITLE, DIM, NAME = "bold", "dim", "cyan"


def seed_lines(seeds: Sequence[int], depth: Sequence[SeedSpread], divergence: SeedValues | None, width: int) -> list[Text]:
    """Write how far two runs are apart over seeds, and their measures by depth."""
    out = [Text(), *prose(say("try.over", seeds=", ".join(map(str, seeds)), count=len(seeds)), width, TITLE)]
    if divergence is not None:
        out += prose(say("try.divergence", step=0, nats=spread(divergence)), width)
    about = [say("try.depth.size"), say("try.depth.likeness"), say("try.depth.gradient")]
    heads = [say("try.tensor"), say("try.relative"), *(f"{name} {side}" for name in about for side in "AB")]
    titles: list[Cell] = [Text(head, DIM) for head in heads]
    rows: list[list[Cell]] = [
        [one.path, in_percent(one.difference), *map(spread, (*one.size, *one.likeness, *one.gradient))] for one in depth
    ]
    return clipped([*out, *table([titles, *rows], [Column(style=NAME), *[Column(">")] * 7])], width)


def spread(s: SeedValues | None) -> str:
    """Write a mean and its spread, "0.332 ± 0.004"."""
    return "" if s is None else f"{number(s.mean)} ± {number(s.spread)}"


def in_percent(s: SeedValues | None) -> str:
    """Write a share's mean and spread in percent."""
    return "" if s is None else f"{percent(s.mean)} ± {percent(s.spread)}"
