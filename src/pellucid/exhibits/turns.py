"""Rotary positions as hands that turn: each pair of channels by its own speed, so that a product keeps only the distance."""

from collections.abc import Iterator

from pellucid.analysis.mask_leak import token_names
from pellucid.analysis.needs import ROTARY
from pellucid.analysis.rotary import (
    hands_alike,
    length_gap,
    nearest,
    other_base,
    rope_of,
    rotation,
    rotations,
    score_by_distance,
    score_maps,
    shift_gap,
    wavelengths,
)
from pellucid.config import Rope
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import LinePanel, MatrixPanel, Panel
from pellucid.messages import say

PROMPT, SHIFT, LLAMA = "The capital of France is", 7, Rope(128)
BASES = (10, 100, 1000, 10000, 100000, 1000000)
PAIRS, POSITION = 2, 4  # of the matrix that is written out
APART = range(0, 49, 2)  # distances of two positions that are drawn
OTHERS = range(1, 65)


def show(e: Experiment) -> Iterator[Panel | Claim]:
    shift, base = int(e.number("shift")), int(e.number("base"))
    run = e.trace(e.text("prompt"))
    own = rope_of(run)
    chosen = other_base(own, base)
    names = [say("exhibit.turns.base", base=int(own.theta)), say("exhibit.turns.base", base=base)]
    waves = {name: wavelengths(rope) for name, rope in zip(names, (own, chosen), strict=True)}
    yield LinePanel(say("exhibit.turns.waves"), say("exhibit.turns.pair"), [*range(len(waves[names[0]]))], waves)
    scores = {name: score_by_distance(run, rope, APART) for name, rope in zip(names, (own, chosen), strict=True)}
    yield LinePanel(say("exhibit.turns.scores"), say("exhibit.turns.distance"), [*APART], scores)
    one, every = hands_alike(chosen, APART)
    lines = {say("exhibit.turns.one"): one, say("exhibit.turns.every"): every}
    yield LinePanel(say("exhibit.turns.alike", base=base), say("exhibit.turns.distance"), [*APART], lines)
    channels = [*map(str, range(len(rotation(chosen, POSITION, PAIRS))))]
    title = say("exhibit.turns.matrix", position=POSITION, base=base)
    yield MatrixPanel(title, channels, channels, rotation(chosen, POSITION, PAIRS))
    pieces, (maps, bare) = token_names(run), score_maps(run, 0)
    yield MatrixPanel(say("exhibit.turns.map"), pieces, pieces, maps, "layers.0.attn.scores", cell=(0, 0, "row", "column"))
    yield MatrixPanel(say("exhibit.turns.bare"), pieces, pieces, bare)
    gaps = [shift_gap(run, shift, e.on(shift, 0)), shift_gap(run, shift, 0)]
    other = e.variant({"layers.*.attn.rope.theta": base})
    both, alone = gaps
    yield e.claim("distance", e.same(both) and e.differ(alone), shift=shift, both=both, one=alone)
    (queries, keys, others), blocks, gap = rotations(run), len(e.model.config.layers), length_gap(run)
    entered = queries == keys == blocks and others == 0 and e.same(gap)
    yield e.claim("entered", entered, queries=queries, keys=keys, others=others, blocks=blocks, gap=gap)
    turns = wavelengths(LLAMA)
    yield e.claim("waves", turns[0] < turns[-1], first=turns[0], last=turns[-1], width=LLAMA.width)
    one, every = hands_alike(chosen, OTHERS)
    (back, near), (_, most) = nearest(one, OTHERS), nearest(every, OTHERS)
    yield e.claim("collide", most < near <= 1, tokens=back, near=near, most=most, base=base)
    plain, right = e.quality(), e.quality(other)
    if base != own.theta:
        counts = {"right": right.right, "plain": plain.right, "of": plain.of, "base": base, "own": int(own.theta)}
        yield e.claim("base", e.differ(right.moved(plain)), loss=right.loss, before=plain.loss, **counts)


CONTROLS = (Control("prompt", PROMPT), Control("base", BASES[1], BASES), Control("shift", SHIFT, (1, SHIFT, 30)))
EXHIBIT = Exhibit("turns", show, model="pellucid/capitals-llama", controls=CONTROLS, needs=ROTARY)
