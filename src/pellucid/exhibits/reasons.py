"""Why attention's weights are computed as they are: equal ways, both run, and the case in which they differ."""

from collections.abc import Iterator

from pellucid.analysis.attention_pairs import SCORES
from pellucid.analysis.equal_pairs import pairs
from pellucid.analysis.needs import PAIRED
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import Panel, pair_panels
from pellucid.messages import say

PROMPT = "The capital of France is"
CASES = {
    "scale": "exhibit.reasons.unscaled",
    "max": "exhibit.reasons.large",
    "mask": "exhibit.reasons.zero",
    "blocks": "exhibit.reasons.unrescaled",
    "chunks": "exhibit.reasons.dropped",
}


def show(e: Experiment) -> Iterator[Panel | Claim]:
    prompt = e.text("prompt")
    made = list(pairs(SCORES, e.trace(prompt), lambda name: e.trace(prompt, e.open_model(name)), e.on(True, False)))
    yield from pair_panels(made, dict(zip(CASES, map(say, CASES.values()), strict=True)), e.text("choice"))
    of = {reason.name: pair for reason, _, pair in made}
    yield e.claim("scale", of["scale"].holds, **of["scale"].facts)
    yield e.claim("max", of["max"].holds, **of["max"].facts)
    yield e.claim("mask", of["mask"].holds, **of["mask"].facts)
    yield e.claim("blocks", of["blocks"].holds, **of["blocks"].facts)
    yield e.claim("chunks", of["chunks"].holds, **of["chunks"].facts)


CONTROLS = (Control("prompt", PROMPT, tokens=2), Control("choice", "scale", tuple(CASES)))
EXHIBIT = Exhibit("reasons", show, controls=CONTROLS, needs=PAIRED)
