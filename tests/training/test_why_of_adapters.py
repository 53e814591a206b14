"""Each weight of an adapter says why it has its gradient, in every family, beside DoRA and dropout; no axis of a tensor is two words."""

import random
from typing import Any

import pytest
import torch

import judge
from pellucid.checkpoint.new_adapter import new_adapter, targeted
from pellucid.nn.adapted import Addition
from pellucid.training.dropout import Dropout
from pellucid.training.objectives import Causal, Document
from pellucid.training.why import why_gradient
from pellucid.watching.watch import watch
from tiny import swapped
from training import WORDS

DECODERS = [f for f in judge.FAMILIES if f not in judge.SEQ2SEQ and judge.KINDS[f].task == "CausalLM"]
ROWS = [[5, 9, 3, 7, 11], [8, 2, 9, 13, 4]]


def furthest(family: str) -> float:
    """Return the largest gap between a gradient and its sum over tokens, over the largest product, of one cell of each kind of weight."""
    own_family, model = judge.ours(judge.judge(family).folder)
    every = [n.removesuffix(".weight") for group in targeted(model, own_family, ["*"]).values() for n in group.ours]
    new_adapter(model, own_family, "base", "mine", 2, 4, [n for n in every if not n.endswith(".kv_b")], dropout=0.25, dora=True)
    draw, chance = torch.Generator().manual_seed(1), random.Random(1)
    trained: dict[str, Any] = {n: p for n, p in model.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for p in trained.values():
            p += torch.randn(p.shape, generator=draw, dtype=p.dtype) * 0.3
    batch, dropout, gaps = Causal(WORDS).batch([Document([], row) for row in ROWS]), Dropout(model, 1), [0.0]
    kinds = {name.partition("layers.")[2].partition(".")[2] or name: name for name in trained}
    for path in kinds.values():
        one = why_gradient(model, [batch], path, [chance.randrange(n) for n in trained[path].shape], dropout=dropout)
        gaps.append(abs(one.rest) / max([abs(t.product) for t in one.tokens] + [1e-30]) if one.gradient else abs(one.total()))
    with torch.no_grad(), watch(model) as seen, dropout.drawn(0):
        model(*batch.inputs)
    assert all(len(s.dims.split()) == len(s.shape) for s in seen)
    assert {s.path.rpartition(".")[2] for s in seen} >= {"lora_b", "dropped", "base"}
    return max(gaps)


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.quick(25)
def test_every_kind_of_weight_is_the_sum_over_its_tokens(family: str) -> None:
    assert furthest(family) < 1e-10


def test_an_axis_of_two_words_is_seen() -> None:
    real = Addition.__init__

    def spaced(self: Addition, *given: Any, **how: Any) -> None:
        real(self, *given, **how)
        self.out, self.inner = (axis.replace("·", " ") for axis in (self.out, self.inner))

    with swapped(Addition, "__init__", spaced), pytest.raises((RuntimeError, AssertionError)):
        furthest("llama")
