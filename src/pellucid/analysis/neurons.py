"""Neurons of the dense feed-forward parts, and how much each adds to the logit of a token, by all ways that lead there."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pellucid.api.model import Model
from pellucid.runs.answers import candidates, tokenizer_of
from pellucid.tracing import Trace, watch

NEURONS = "layers.*.ffn.neurons"


@dataclass(frozen=True)
class Neuron:
    """A neuron in one row. path: of its tensor.  effect: its value times the logit's gradient, what a straight line says it adds."""

    path: str
    row: int
    number: int
    effect: float

    @property
    def off(self) -> str:
        """Return the change that sets it to 0."""
        return f"{self.path}[T={self.row}, F={self.number}] = 0"


def neurons_for(model: Model, ids: Sequence[int], token: int, count: int) -> list[Neuron]:
    """Return the `count` neurons that add most to the logit of `token` after these ids, the largest effect first."""
    with torch.enable_grad(), watch(model, only=NEURONS, grad=True) as seen:
        model(torch.tensor([list(ids)], device=model.device))[0, -1, token].backward()
    effects = torch.stack([(s.value * s.grad)[0].double().detach() for s in seen])  # [layer T F]
    best = effects.flatten().topk(count).indices
    layers, rows, numbers = (one.tolist() for one in torch.unravel_index(best, effects.shape))
    paths = [s.path for s in seen]
    return [Neuron(paths[n], t, f, float(effects[n, t, f])) for n, t, f in zip(layers, rows, numbers, strict=True)]


def probability(run: Trace, token: int) -> float:
    """Return the probability of a token after a recorded prompt."""
    return candidates(tokenizer_of(run.runner), run.last_logits(0), [token])[0].probability
