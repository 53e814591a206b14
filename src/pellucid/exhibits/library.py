"""Beside PyTorch: nn.MultiheadAttention with a model's weights gives the model's attention."""

from collections.abc import Iterator

from pellucid.analysis.library_attention import library_attention, library_gaps, thirds
from pellucid.analysis.needs import TWIN
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import Panel, TablePanel
from pellucid.messages import say

PROMPT = "The capital of France is"
PATH = "layers.0.attn"
RIGHT, SWAPPED = ("q", "k", "v"), ("q", "v", "k")


def show(e: Experiment) -> Iterator[Panel | Claim]:
    run = e.trace(e.text("prompt"))
    theirs, wrong = library_attention(e.model, PATH, e.on(RIGHT, SWAPPED)), library_attention(e.model, PATH, SWAPPED)
    weights = {name: e.model.weight(f"{PATH}.{name}.weight") for name in RIGHT}
    matrices = thirds(theirs, weights)
    columns = [say("exhibit.library.rows"), *(f"{PATH}.{name}" for name in weights)]
    yield TablePanel(say("exhibit.library.thirds"), columns, [(rows, *gaps.values()) for rows, gaps in matrices])
    out, each, mean = library_gaps(run, PATH, theirs)
    swapped, _, _ = library_gaps(run, PATH, wrong)
    table = [(say("exhibit.library.right"), out), (say("exhibit.library.swapped"), swapped)]
    yield TablePanel(say("exhibit.library.table"), [say("exhibit.library.order"), say("exhibit.library.gap")], table)
    q, k, v = (rows for rows, _ in matrices)
    yield e.claim("thirds", all(matrices[n][1][name] == 0 for n, name in enumerate(RIGHT)), q=q, k=k, v=v)
    yield e.claim("same", e.same(out), gap=out)
    yield e.claim("swapped", e.differ(swapped), gap=swapped)
    heads = e.model.config.layers[0].attn.heads
    yield e.claim("maps", e.same(each) and e.same(mean), heads=heads, gap=max(each, mean))


EXHIBIT = Exhibit("library", show, controls=(Control("prompt", PROMPT),), needs=TWIN)
