"""Effects of neurons: exact where the way to the logit is a straight line, and of the neurons that carry the answer."""

import pytest
import torch

import pellucid
from pellucid.analysis.neurons import neurons_for, probability
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
