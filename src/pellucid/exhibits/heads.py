"""Splitting and joining: heads are joined by a swap and a merge; by a reshape alone they mix tokens."""

from collections.abc import Iterator

from pellucid.analysis.needs import CAUSAL_HEADS
from pellucid.analysis.split_heads import (
    as_table,
    equally_long,
    head_of_batch,
    join,
    join_by_reshape,
    joined_by_reshape,
    lone_gap,
    moved_rows,
    named_cells,
    number_at,
    place,
    ramp,
    shape,
    split,
    stages,
)
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import CubePanel, MatrixPanel, Panel, TablePanel
from pellucid.messages import say

BATCH, HEADS, ROWS, WIDTH = 4, 4, 16, 128  # of the split that the table of steps shows
WIDE = 512
CELL = 1, 2, 389  # batch, token and channel of the number that is followed
SMALL, SMALL_HEADS = (3, 4), 2  # tokens and channels of the table whose cells are drawn
AXES = "T", "TH", "HT", "TH", "T", "T"  # of the rows after each step


def show(e: Experiment) -> Iterator[Panel | Claim]:
    table = ramp(BATCH, ROWS, HEADS, WIDTH).flatten(2)
    heads = split(table, HEADS)
    after = (
        say("exhibit.heads.rows"),
        say("exhibit.heads.split"),
        say("exhibit.heads.apart"),
        say("exhibit.heads.back"),
        say("exhibit.heads.joined"),
        say("exhibit.heads.wrong"),
    )
    for step, named, x in zip(after, AXES, stages(named_cells(*SMALL), SMALL_HEADS), strict=True):
        names, values = as_table(x, named)
        yield MatrixPanel(f"{step}  {shape(x[0])}", names, [*map(str, range(len(values[0])))], values)
    number = number_at(*CELL, ROWS, WIDE)
    steps = stages(table, HEADS)
    places = [place(x, number) for x in steps]
    columns = [say("exhibit.heads.step"), say("exhibit.heads.shape"), say("exhibit.heads.place", cell=places[0])]
    yield TablePanel(say("exhibit.heads.steps"), columns, [*zip(after, map(shape, steps), places, strict=True)])
    kept, lost = e.on(places[-2:], (places[0], places[0]))
    yield e.claim("cell", kept == places[0] and lost != places[0], cell=places[0], joined=kept, wrong=lost)
    prompts, head = equally_long(e.model, BATCH), int(e.number("head"))
    batched, cube = head_of_batch(e.model, prompts, head)
    axes = say("exhibit.heads.batch"), say("exhibit.heads.token"), say("exhibit.heads.width")
    yield CubePanel(say("exhibit.heads.cube", head=head, shape=shape(batched)), axes, cube.tolist(), "layers.0.attn.z")
    own, other = lone_gap(e.model, prompts, head, cube), lone_gap(e.model, prompts, head, cube, e.on(1, 0))
    yield e.claim("batch", e.same(own) and e.differ(other), batch=len(prompts), own=own, other=other)
    yield e.claim("joined", moved_rows(join, HEADS, ROWS, WIDTH) == 0, apart=shape(heads), joined=shape(join(heads)))
    moved = e.on(moved_rows(join_by_reshape, HEADS, ROWS, WIDTH), moved_rows(join, HEADS, ROWS, WIDTH))
    plain = e.quality()
    wrong = e.on(joined_by_reshape(e.model), plain)
    numbers = {"moved": moved, "rows": ROWS, "right": wrong.right, "of": plain.of}
    if plain.right:
        yield e.claim("reshape", moved > 0 and wrong.right < plain.right, plain=plain.right, **numbers)
    else:
        yield e.claim("unable", moved > 0 and wrong.right <= plain.right, model=e.model.name, **numbers)


EXHIBIT = Exhibit("heads", show, controls=(Control("head", 0, (0, 1, 2, 3)),), needs=CAUSAL_HEADS)
