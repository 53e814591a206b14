"""Why minus infinity: a score of 0 hides nothing, since e^0 is 1."""

from collections.abc import Iterator

from pellucid.analysis.mask_leak import cells, future_shares, replaced, row_gap
from pellucid.analysis.needs import CAUSAL_HEADS
from pellucid.analysis.rows import mean
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import MatrixPanel, Panel, TablePanel
from pellucid.messages import say

PROMPT = "The capital of France is"


def show(e: Experiment) -> Iterator[Panel | Claim]:
    leaky = e.variant({"layers.*.attn.fill": 0.0})
    models = {say("exhibit.mask.infinite"): e.model, say("exhibit.mask.zero"): leaky}
    runs = {about: e.trace(e.text("prompt"), model) for about, model in models.items()}
    other = replaced(next(iter(runs.values())).ids)
    for number, (about, run) in enumerate(runs.items()):
        path, names, values = cells(run)
        yield MatrixPanel(say("exhibit.mask.pattern", about=about), names, names, values, path, "share", (0, 0, "row", "column"), number)
    every = [future_shares(run) for run in runs.values()]
    shares = [mean(own) for own in every]
    gaps = [row_gap(model, run.ids, other) for model, run in zip(models.values(), runs.values(), strict=True)]
    columns = [say("exhibit.mask.score"), say("exhibit.mask.share"), say("exhibit.mask.gap")]
    yield TablePanel(say("exhibit.mask.table"), columns, [*zip(models, shares, gaps, strict=True)])
    (hidden, leaked), (kept, moved) = every, gaps
    yield e.claim("hidden", max(hidden) == 0 and kept == 0, share=max(hidden), gap=kept)
    yield e.claim("leaked", min(leaked) > 0, first=leaked[0], mean=shares[1])
    yield e.claim("moved", e.differ(moved), gap=moved)
    plain, right = e.quality(), e.quality(leaky)
    counts = {"right": right.right, "plain": plain.right, "of": plain.of}
    yield e.claim("answers", e.differ(right.moved(plain)), loss=right.loss, own=plain.loss, **counts)


EXHIBIT = Exhibit("mask", show, controls=(Control("prompt", PROMPT, tokens=2),), needs=CAUSAL_HEADS)
