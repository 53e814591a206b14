"""One after another: a GRU needs each row before the next, attention none."""

from collections.abc import Iterator
from functools import partial

from pellucid.analysis.independence import rows_of
from pellucid.analysis.mask_leak import token_names
from pellucid.analysis.needs import REACHING
from pellucid.analysis.sequence_layers import attention, gru, influence, random_rows, reaching, work
from pellucid.analysis.turns_timed import in_turn
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import LinePanel, MatrixPanel, Panel, TablePanel
from pellucid.messages import say

PROMPT = "The capital of France is"
LENGTHS = (8, 16, 32, 64)
TIMED = "exhibit.recurrent.layer", "exhibit.recurrent.work", "exhibit.recurrent.chain", "exhibit.fastest", "exhibit.median"


def show(e: Experiment) -> Iterator[Panel | Claim]:
    model = e.model
    layers = {say("exhibit.recurrent.attention"): attention(model), say("exhibit.recurrent.gru"): e.on(gru, attention)(model)}
    done = {name: [work(layer, random_rows(model, n)) for n in LENGTHS] for name, layer in layers.items()}
    chains = {name: [one.chain for one in own] for name, own in done.items()}
    yield LinePanel(say("exhibit.recurrent.chains"), say("exhibit.recurrent.rows"), LENGTHS, chains)
    flops = {name: [one.flops for one in own] for name, own in done.items()}
    yield LinePanel(say("exhibit.recurrent.flops"), say("exhibit.recurrent.rows"), LENGTHS, flops)
    long = random_rows(model, LENGTHS[-1])
    times = in_turn({name: partial(layer, long) for name, layer in layers.items()})
    timed = [(name, flops[name][-1], chains[name][-1], times[name].fastest, times[name].median) for name in layers]
    yield TablePanel(say("exhibit.recurrent.times", rows=LENGTHS[-1]), list(map(say, TIMED)), timed)
    run = e.trace(e.text("prompt"))
    pieces, maps = token_names(run), {name: influence(layer, rows_of(run)) for name, layer in layers.items()}
    for name, values in maps.items():
        yield MatrixPanel(say("exhibit.recurrent.map", layer=name), pieces, pieces, values)
    one, chain = chains.values()
    numbers = {"attention": one[0], "short": chain[0], "long": chain[-1], "least": LENGTHS[0], "most": LENGTHS[-1]}
    yield e.claim("chain", one[0] == one[-1] and chain[-1] > chain[0], **numbers)
    seen, states = (reaching(values) for values in maps.values())
    yield e.claim("reach", seen == states == len(run.ids), rows=seen)


EXHIBIT = Exhibit("recurrent", show, controls=(Control("prompt", PROMPT, tokens=2),), needs=REACHING)
