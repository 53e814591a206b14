"""Why weights may be folded, shared and merged: equal ways, both run, and the case in which they differ."""

from collections.abc import Iterator

from pellucid.analysis.equal_pairs import pairs
from pellucid.analysis.needs import PAIRED
from pellucid.analysis.weight_pairs import REWRITES
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import Panel, pair_panels
from pellucid.messages import say

PROMPT = "The capital of France is"
CASES = {
    "norm": "exhibit.rewrites.second",
    "tied": "exhibit.rewrites.two_tables",
    "experts": "exhibit.rewrites.every",
    "merged": "exhibit.rewrites.rounded",
    "loss": "exhibit.rewrites.averages",
}


def show(e: Experiment) -> Iterator[Panel | Claim]:
    prompt = e.text("prompt")
    made = list(pairs(REWRITES, e.trace(prompt), lambda name: e.trace(prompt, e.open_model(name)), e.on(True, False)))
    yield from pair_panels(made, dict(zip(CASES, map(say, CASES.values()), strict=True)), e.text("choice"))
    of = {reason.name: pair for reason, _, pair in made}
    yield e.claim("norm", of["norm"].holds, **of["norm"].facts)
    yield e.claim("tied", of["tied"].holds, **of["tied"].facts)
    yield e.claim("experts", of["experts"].holds, **of["experts"].facts)
    yield e.claim("merged", of["merged"].holds, **of["merged"].facts)
    yield e.claim("loss", of["loss"].holds, **of["loss"].facts)


CONTROLS = (Control("prompt", PROMPT, tokens=4), Control("choice", "norm", tuple(CASES)))
EXHIBIT = Exhibit("rewrites", show, controls=CONTROLS, needs=PAIRED)
