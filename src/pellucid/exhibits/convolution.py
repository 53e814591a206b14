"""How far a convolution sees: contiguous kernels need many layers until the first token reaches the last, dilated ones few."""

from collections.abc import Iterator
from functools import partial

from pellucid.analysis.independence import rows_of
from pellucid.analysis.mask_leak import token_names
from pellucid.analysis.needs import REACHING
from pellucid.analysis.sequence_layers import (
    attention,
    contiguous_layers,
    convolution,
    dilated_layers,
    influence,
    layers_needed,
    random_rows,
    reaching,
    work,
)
from pellucid.analysis.turns_timed import in_turn
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import MatrixPanel, Panel, TablePanel
from pellucid.messages import say

PROMPT = "The capital of France is"
LENGTHS = (8, 16, 32, 64)
TIMED = "exhibit.convolution.layer", "exhibit.convolution.work", "exhibit.convolution.chain", "exhibit.fastest", "exhibit.median"


def show(e: Experiment) -> Iterator[Panel | Claim]:
    kernel, model = int(e.number("kernel")), e.model
    near = [layers_needed(model, n, kernel, dilated=False) for n in LENGTHS]
    far = [layers_needed(model, n, kernel, dilated=e.on(True, False)) for n in LENGTHS]
    logs, steps = [dilated_layers(n, kernel) for n in LENGTHS], [contiguous_layers(n, kernel) for n in LENGTHS]
    columns = [
        say("exhibit.convolution.rows"),
        say("exhibit.convolution.near"),
        "⌈(n − 1) / (k − 1)⌉",
        say("exhibit.convolution.far"),
        "⌈log_k n⌉",
    ]
    yield TablePanel(say("exhibit.convolution.layers", kernel=kernel), columns, [*zip(LENGTHS, near, steps, far, logs, strict=True)])
    layers = {
        say("exhibit.convolution.attention"): attention(model),
        say("exhibit.convolution.near"): convolution(model, kernel, near[-1]),
        say("exhibit.convolution.far"): convolution(model, kernel, far[-1], True),
    }
    long = random_rows(model, LENGTHS[-1])
    done, times = {name: work(layer, long) for name, layer in layers.items()}, in_turn({n: partial(own, long) for n, own in layers.items()})
    timed = [(name, one.flops, one.chain, times[name].fastest, times[name].median) for name, one in done.items()]
    yield TablePanel(say("exhibit.convolution.times", rows=LENGTHS[-1]), list(map(say, TIMED)), timed)
    run = e.trace(e.text("prompt"))
    pieces, values = token_names(run), influence(convolution(model, kernel), rows_of(run))
    yield MatrixPanel(say("exhibit.convolution.map", kernel=kernel), pieces, pieces, values)
    yield e.claim("layers", near == steps and far == logs, near=near[-1], far=far[-1], most=LENGTHS[-1], kernel=kernel)
    few = reaching(values)
    yield e.claim("reach", few == min(kernel, len(run.ids)), few=few, kernel=kernel)


EXHIBIT = Exhibit("convolution", show, controls=(Control("prompt", PROMPT, tokens=2), Control("kernel", 3, (2, 3, 4))), needs=REACHING)
