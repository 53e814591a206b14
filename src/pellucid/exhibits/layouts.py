"""Why queries and keys are laid out as they are: equal ways, both run, and the case in which they differ."""

from collections.abc import Iterator

from pellucid.analysis.attention_pairs import LAYOUTS
from pellucid.analysis.equal_pairs import pairs
from pellucid.analysis.needs import PAIRED
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import Panel, pair_panels
from pellucid.messages import say

PROMPT = "The capital of France is"
CASES = {
    "groups": "exhibit.layouts.in_turn",
    "latent": "exhibit.layouts.rotated",
    "rope": "exhibit.layouts.unpermuted",
    "bias": "exhibit.layouts.of_queries",
    "products": "exhibit.layouts.thirds",
}


def show(e: Experiment) -> Iterator[Panel | Claim]:
    prompt = e.text("prompt")
    made = list(pairs(LAYOUTS, e.trace(prompt), lambda name: e.trace(prompt, e.open_model(name)), e.on(True, False)))
    yield from pair_panels(made, dict(zip(CASES, map(say, CASES.values()), strict=True)), e.text("choice"))
    of = {reason.name: pair for reason, _, pair in made}
    yield e.claim("groups", of["groups"].holds, **of["groups"].facts)
    yield e.claim("latent", of["latent"].holds, **of["latent"].facts)
    yield e.claim("rope", of["rope"].holds, **of["rope"].facts)
    yield e.claim("bias", of["bias"].holds, **of["bias"].facts)
    yield e.claim("products", of["products"].holds, **of["products"].facts)


CONTROLS = (Control("prompt", PROMPT, tokens=2), Control("choice", "groups", tuple(CASES)))
EXHIBIT = Exhibit("layouts", show, controls=CONTROLS, needs=PAIRED)
