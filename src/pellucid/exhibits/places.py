"""Where order enters: rotary positions turn queries and keys in every block, and a score keeps only the distance."""

from collections.abc import Iterator

from pellucid.analysis.rotary import length_gap, rope_of, rotary, rotations, shift_gap, wavelengths
from pellucid.config import Rope
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import LinePanel, Panel, TablePanel
from pellucid.messages import say

PROMPT, SHIFT, LLAMA = "The capital of France is", 7, Rope(128)


def show(e: Experiment) -> Iterator[Panel | Claim]:
    run, shift = e.trace(e.text("prompt")), int(e.number("shift"))
    gaps = [shift_gap(run, shift, e.on(shift, 0)), shift_gap(run, shift, 0)]
    columns = [say("exhibit.places.moved"), say("exhibit.places.gap")]
    names = [say("exhibit.places.both", shift=shift), say("exhibit.places.query", shift=shift)]
    yield TablePanel(say("exhibit.places.table"), columns, [*zip(names, gaps, strict=True)])
    own = wavelengths(rope_of(run))
    yield LinePanel(say("exhibit.places.waves"), say("exhibit.places.pair"), [*range(len(own))], {say("exhibit.places.tokens"): own})
    both, one = gaps
    yield e.claim("distance", e.same(both) and e.differ(one), shift=shift, both=both, one=one)
    (queries, keys, others), blocks = rotations(run), len(e.model.config.layers)
    yield e.claim("entered", queries == keys == blocks and others == 0, queries=queries, keys=keys, others=others, blocks=blocks)
    gap = length_gap(run)
    yield e.claim("lengths", e.same(gap), gap=gap)
    waves = wavelengths(LLAMA)
    yield e.claim("waves", waves[0] < waves[-1], first=waves[0], last=waves[-1], width=LLAMA.width)


CONTROLS = (Control("prompt", PROMPT), Control("shift", SHIFT, (1, SHIFT, 100)))
EXHIBIT = Exhibit("places", show, model="pellucid/capitals-llama", controls=CONTROLS, fits=rotary)
