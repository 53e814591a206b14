"""Bending a line: what an activation does to the neurons, and how little the trained model minds another one."""

from collections.abc import Iterator

from pellucid.analysis.needs import DENSE, GENERATOR, ONE_NUMBER
from pellucid.analysis.silence import bend, curve, gated_curve, places, silence
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import LinePanel, Panel, TablePanel
from pellucid.messages import say

PROMPT = "The capital of France is"
ACTS = ("relu", "gelu", "silu")
GATED, NAMED = "pellucid/capitals-llama", {"silu": "SwiGLU", "gelu": "GEGLU", "relu": "ReGLU"}
VALUES = 1.0, -1.0  # that the curves of gates multiply


def show(e: Experiment) -> Iterator[Panel | Claim]:
    at = places(-4, 4, 17)
    yield LinePanel(say("exhibit.activations.curves"), "x", at, {act: curve(act, at) for act in ACTS})
    gates = {f"{NAMED[act]}, {value:+.0f}": gated_curve(act, at, value) for act in ("silu", "gelu") for value in VALUES}
    yield LinePanel(say("exhibit.activations.gates"), "x", at, gates)
    relu, bare = e.variant({"layers.*.ffn.act": "relu"}), e.variant({"layers.*.ffn.bias": False})
    own = e.model.config.layers[0].ffn.act
    models = {own: e.model, "relu": relu}
    counts = {act: silence(e.trace(e.text("prompt"), model)) for act, model in models.items()}
    heads = "exhibit.activations.act", "exhibit.activations.of", "exhibit.activations.negative", "exhibit.activations.zero"
    columns = [*map(say, heads), say("exhibit.activations.near")]
    rows = [(act, c.of, c.negative, c.zero, c.near) for act, c in counts.items()]
    yield TablePanel(say("exhibit.activations.table"), columns, rows)
    before, after = counts[own], counts["relu"]
    zeroed = after.zero == after.negative and before.zero < after.zero
    yield e.claim("zeroed", zeroed, zero=after.zero, negative=after.negative, of=after.of, own=before.zero, near=before.near, act=own)
    opposite = e.on(places(4, -4, 17), at)
    bends = {act: bend(act, at, opposite) for act in ACTS}
    straight, most = (max(pair[k] for pair in bends.values()) for k in (0, 1))
    yield e.claim("bent", straight < 1e-12 < most, gap=straight, bend=most)
    plain, other, free = e.quality(), e.quality(relu), e.quality(bare)
    if plain.known:
        kept = other.right == plain.right and e.differ(other.moved(plain))
        numbers = {"right": other.right, "plain": plain.right, "of": plain.of}
        yield e.claim("answers", kept, loss=other.loss, own=plain.loss, act=own, **numbers)
    gated = e.model if e.model.config.layers[0].ffn.gated else e.open_model(GATED)
    others = {act: e.variant({"layers.*.ffn.act": act}, gated) for act in NAMED}
    measured = {act: (silence(e.trace(e.text("prompt"), model)), e.quality(model)) for act, model in others.items()}
    columns = [columns[0], columns[1], say("exhibit.activations.closed"), columns[3], say("exhibit.activations.right")]
    rows = [(f"{NAMED[act]} ({act})", c.of, c.negative, c.zero, q.right) for act, (c, q) in measured.items()]
    yield TablePanel(say("exhibit.activations.gated", model=gated.name), columns, rows)
    (swish, right), (_, geglu), (reglu, _) = measured.values()
    numbers = {"silu": right.right, "gelu": geglu.right, "zero": reglu.zero, "own": swish.zero, "of": right.of}
    yield e.claim("gated", reglu.zero > swish.zero and e.differ(geglu.moved(right)), **numbers)
    if e.model.config.layers[0].ffn.bias:
        sizes = {"own": e.model.num_parameters(), "bare": bare.num_parameters(), "right": free.right, "of": plain.of}
        yield e.claim("bias", e.differ(free.moved(plain)), loss=free.loss, before=plain.loss, **sizes)


EXHIBIT = Exhibit("activations", show, controls=(Control("prompt", PROMPT),), needs=(*GENERATOR, DENSE, ONE_NUMBER))
