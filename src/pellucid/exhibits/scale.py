"""Dividing by √d: products of wide rows spread, and a softmax of far-spread scores looks at one key alone."""

from collections.abc import Iterator

from pellucid.analysis.needs import CAUSAL_HEADS
from pellucid.analysis.rows import entropy, mean
from pellucid.analysis.score_spread import drawn_variance, halvings, largest_error, real_variance, scale_of
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import LinePanel, Panel, TablePanel
from pellucid.messages import say

PROMPT, ROUGH = "The capital of France is", 0.1


def show(e: Experiment) -> Iterator[Panel | Claim]:
    plain, bare = e.model, e.variant({"layers.*.attn.scale": 1.0})
    runs = [e.trace(e.text("prompt"), model) for model in (plain, bare)]
    used, width, gap = scale_of(runs[0])
    widths = halvings(width)
    drawn, real = [drawn_variance(n) for n in widths], [real_variance(runs[0], n) for n in widths]
    lines = {say("exhibit.scale.drawn"): drawn, say("exhibit.scale.real"): real}
    yield LinePanel(say("exhibit.scale.variance"), say("exhibit.scale.width"), widths, lines)
    bits = [mean(mean(entropy(s.value)) for s in run if s.path.endswith(".attn.pattern")) for run in runs]
    right = [e.quality(model) for model in (plain, bare)]
    columns = [say("exhibit.scale.model"), say("exhibit.scale.bits"), say("exhibit.scale.right")]
    names = [say("exhibit.scale.with"), say("exhibit.scale.without")]
    yield TablePanel(say("exhibit.scale.table"), columns, [*zip(names, bits, [one.right for one in right], strict=True)])
    yield e.claim("variance", largest_error(drawn, widths) < ROUGH, width=width, variance=drawn[-1], least=widths[0], one=drawn[0])
    yield e.claim("width", e.same(gap), used=used, width=width, row=plain.config.width)
    yield e.claim("sharper", bits[1] < bits[0], plain=bits[0], bare=bits[1])
    own, other = right
    counts = {"right": other.right, "plain": own.right, "of": own.of}
    yield e.claim("answers", e.differ(other.moved(own)), loss=other.loss, own=own.loss, **counts)


EXHIBIT = Exhibit("scale", show, controls=(Control("prompt", PROMPT, tokens=2),), needs=CAUSAL_HEADS)
