"""Splitting and joining: heads share a width, so their number costs nothing; joined by a reshape alone, they mix tokens."""

from collections.abc import Iterator

from pellucid.analysis.mask_leak import causal_attention, token_names
from pellucid.analysis.split_heads import (
    head_gap,
    join,
    join_by_reshape,
    joined_by_reshape,
    moved_rows,
    parameters,
    ramp,
    shape,
    split,
)
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import MatrixPanel, Panel, TablePanel
from pellucid.messages import say

PROMPT = "The capital of France is"
BATCH, HEADS, ROWS, WIDTH = 4, 4, 16, 128  # of the split that the table of steps shows
WIDE, COUNTS = 512, (1, 2, 4, 8, 64)


def show(e: Experiment) -> Iterator[Panel | Claim]:
    table = ramp(BATCH, ROWS, HEADS, WIDTH).flatten(2)
    heads = split(table, HEADS)
    rows = [
        (say("exhibit.heads.rows"), shape(table)),
        (say("exhibit.heads.apart"), shape(heads)),
        (say("exhibit.heads.joined"), shape(join(heads))),
    ]
    yield TablePanel(say("exhibit.heads.steps"), [say("exhibit.heads.step"), say("exhibit.heads.shape")], rows)
    yield e.claim("joined", moved_rows(join, HEADS, ROWS, WIDTH) == 0, apart=shape(heads), joined=shape(join(heads)))
    moved = e.on(moved_rows(join_by_reshape, HEADS, ROWS, WIDTH), moved_rows(join, HEADS, ROWS, WIDTH))
    plain = e.quality()
    wrong = e.on(joined_by_reshape(e.model), plain)
    yield e.claim(
        "reshape", moved > 0 and wrong.right < plain.right, moved=moved, rows=ROWS, right=wrong.right, plain=plain.right, of=plain.of
    )
    counts = {n: parameters(WIDE, n) for n in COUNTS}
    yield TablePanel(say("exhibit.heads.table"), [say("exhibit.heads.heads"), say("exhibit.heads.parameters")], [*counts.items()])
    yield e.claim("count", len({*counts.values()}) == 1, width=WIDE, count=counts[COUNTS[0]], most=COUNTS[-1])
    run = e.trace(e.text("prompt"))
    pattern = next(s for s in run if s.path.endswith(".attn.pattern"))
    names = token_names(run)
    for head, values in enumerate(pattern.value[0].tolist()):
        yield MatrixPanel(say("exhibit.heads.map", head=head), names, names, values, pattern.path, "share")
    gap = head_gap(pattern.value)
    yield e.claim("maps", e.differ(gap), shape=shape(pattern.value[0]), gap=gap)


EXHIBIT = Exhibit("heads", show, controls=(Control("prompt", PROMPT),), fits=causal_attention)
