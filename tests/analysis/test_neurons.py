"""Effects of neurons: exact where the way to the logit is a straight line, and of the neurons that carry the answer."""

import pytest
import torch

import pellucid
from pellucid.analysis.neurons import logit_moves, network, neurons_for, of_one_row, probability
from pellucid.api.change_values import changes

PROMPT = "The capital of France is"


def test_effects_are_those_of_a_straight_line() -> None:
    """From the last block's neurons to the logit there is one norm: a small change follows the gradient, and the largest come first."""
    model = pellucid.load("pellucid/capitals", dtype="float64")
    plain = pellucid.trace(model, PROMPT)
    token = plain.new[0]
    best = neurons_for(model, plain.ids, token, 20)
    assert [n.effect for n in best] == sorted((n.effect for n in best), reverse=True)
    one, step = best[0], 1e-6
    changed = pellucid.trace(model, PROMPT, edit=changes(model, [one.off.replace("= 0", f"*= {1 - step}")]))
    slope = float(plain.last_logits(0)[token] - changed.last_logits(0)[token]) / step
    assert slope == pytest.approx(one.effect, rel=1e-4)


def test_off_is_a_change() -> None:
    model = pellucid.load("pellucid/capitals", dtype="float32")
    plain = pellucid.trace(model, PROMPT)
    own = neurons_for(model, plain.ids, plain.new[0], 64)
    off = pellucid.trace(model, PROMPT, edit=changes(model, [n.off for n in own]))
    assert all(float(off[n.path].value[0, n.row, n.number]) == 0 for n in own)
    assert probability(plain, plain.new[0]) == pytest.approx(float(torch.softmax(plain.last_logits(0), -1)[plain.new[0]]), abs=1e-6)
    assert probability(off, plain.new[0]) < probability(plain, plain.new[0])
    first, second = plain.last_logits(0).topk(2).indices.tolist()
    moves = [float(off.last_logits(0)[t] - plain.last_logits(0)[t]) for t in (first, second)]
    assert logit_moves(plain, off, [first, second]) == pytest.approx(moves) and logit_moves(plain, plain, [first]) == [0.0] > [moves[0]]


@pytest.mark.parametrize("name", ["pellucid/capitals", "pellucid/capitals-llama"])
def test_network_by_hand(name: str) -> None:
    """What flows into a neuron adds up to the run's own sum, what flows out is its effect on each word; another row's is not."""
    model = pellucid.load(name, dtype="float64")
    run = pellucid.trace(model, PROMPT)
    token, other = run.last_logits(0).topk(2).indices.tolist()
    few = of_one_row(neurons_for(model, run.ids, token, 30), 3)
    assert len({(n.path, n.row) for n in few}) == 1
    links = network(run, few, [token, other], 4)
    assert links.gap < 1e-10 and len(links.inputs) == 4 and len(links.weights) == 5
    assert [row[0] for row in links.effects] == pytest.approx([n.effect for n in few])
    assert [row[1] for row in links.effects] != pytest.approx([n.effect for n in few])
    block, part = few[0].path.removesuffix(".neurons"), "up" if "gate" not in [s.path.rpartition(".")[2] for s in run] else "gate"
    weight = model.module.get_parameter(f"{block}.{part}.weight")
    channel, x = next(iter(links.inputs.items()))
    assert x == pytest.approx(float(run[f"{block}_norm"].value[0, few[0].row, channel]))
    assert links.weights[0] == pytest.approx([x * float(weight[n.number, channel]) for n in few])
    run[f"{block}_norm"].value[0, few[0].row, channel] += 1
    assert network(run, few, [token], 4).gap > 1e-3
