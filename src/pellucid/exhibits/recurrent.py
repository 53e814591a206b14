"""One after another: a GRU needs each row before the next, attention none, a convolution many layers to see far."""

from collections.abc import Iterator
from functools import partial

from pellucid.analysis.independence import rows_of
from pellucid.analysis.needs import REACHING
from pellucid.analysis.sequence_layers import (
    attention,
    contiguous_layers,
    convolution,
    dilated_layers,
    gru,
    influence,
    layers_needed,
    random_rows,
    reaching,
    work,
)
from pellucid.analysis.turns_timed import in_turn
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import LinePanel, MatrixPanel, Panel, TablePanel
from pellucid.messages import say
from pellucid.runs.answers import piece_of, tokenizer_of, visible

PROMPT = "The capital of France is"
LENGTHS = (8, 16, 32, 64)
TIMED = "exhibit.recurrent.layer", "exhibit.recurrent.work", "exhibit.recurrent.chain", "exhibit.fastest", "exhibit.median"


def show(e: Experiment) -> Iterator[Panel | Claim]:
    kernel, model = int(e.number("kernel")), e.model
    near = [layers_needed(model, n, kernel, dilated=False) for n in LENGTHS]
    far = [layers_needed(model, n, kernel, dilated=e.on(True, False)) for n in LENGTHS]
    logs, steps = [dilated_layers(n, kernel) for n in LENGTHS], [contiguous_layers(n, kernel) for n in LENGTHS]
    names = [
        say("exhibit.recurrent.attention"),
        say("exhibit.recurrent.gru"),
        say("exhibit.recurrent.convolution", kernel=kernel),
        say("exhibit.recurrent.dilated", kernel=kernel),
    ]
    layers = [
        (attention(model), gru(model), convolution(model, kernel, a), convolution(model, kernel, b, True))
        for a, b in zip(near, far, strict=True)
    ]
    done = [[work(layer, random_rows(model, n)) for layer in row] for n, row in zip(LENGTHS, layers, strict=True)]
    chains = {name: [row[i].chain for row in done] for i, name in enumerate(names)}
    yield LinePanel(say("exhibit.recurrent.chains"), say("exhibit.recurrent.rows"), LENGTHS, chains)
    flops = {name: [row[i].flops for row in done] for i, name in enumerate(names)}
    yield LinePanel(say("exhibit.recurrent.flops"), say("exhibit.recurrent.rows"), LENGTHS, flops)
    long = random_rows(model, LENGTHS[-1])
    times = in_turn({name: partial(layer, long) for name, layer in zip(names, layers[-1], strict=True)})
    timed = [(name, flops[name][-1], chains[name][-1], times[name].fastest, times[name].median) for name in names]
    yield TablePanel(say("exhibit.recurrent.times", rows=LENGTHS[-1]), list(map(say, TIMED)), timed)
    columns = [
        say("exhibit.recurrent.rows"),
        say("exhibit.recurrent.near"),
        "⌈(n − 1) / (k − 1)⌉",
        say("exhibit.recurrent.far"),
        "⌈log_k n⌉",
    ]
    yield TablePanel(say("exhibit.recurrent.layers", kernel=kernel), columns, [*zip(LENGTHS, near, steps, far, logs, strict=True)])
    run = e.trace(e.text("prompt"))
    pieces = [visible(piece_of(tokenizer_of(model), i)) or str(i) for i in run.ids]
    maps = [influence(layer, rows_of(run)) for layer in (attention(model), gru(model), convolution(model, kernel))]
    for name, values in zip(names, maps, strict=False):
        yield MatrixPanel(say("exhibit.recurrent.map", layer=name), pieces, pieces, values)
    one, chain, *_ = chains.values()
    numbers = {"attention": one[0], "short": chain[0], "long": chain[-1], "least": LENGTHS[0], "most": LENGTHS[-1]}
    yield e.claim("chain", one[0] == one[-1] and chain[-1] > chain[0], **numbers)
    yield e.claim("layers", near == steps and far == logs, near=near[-1], far=far[-1], most=LENGTHS[-1], kernel=kernel)
    seen, states, few = (reaching(values) for values in maps)
    yield e.claim("reach", seen == states == len(run.ids) and few == min(kernel, len(run.ids)), rows=seen, few=few)


EXHIBIT = Exhibit("recurrent", show, controls=(Control("prompt", PROMPT, tokens=2), Control("kernel", 3, (2, 3, 4))), needs=REACHING)
