"""Neurons of the dense feed-forward parts, and how much each adds to the logit of a token, by all ways that lead there."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

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


def effects(model: Model, ids: Sequence[int], token: int) -> tuple[list[str], Tensor]:
    """Return the paths of the neurons and what each adds to the logit of `token` after these ids, [layer T F]."""
    with torch.enable_grad(), watch(model, only=NEURONS, grad=True) as seen:
        model(torch.tensor([list(ids)], device=model.device))[0, -1, token].backward()
    return [s.path for s in seen], torch.stack([(s.value * s.grad)[0].double().detach() for s in seen])


def neurons_for(model: Model, ids: Sequence[int], token: int, count: int) -> list[Neuron]:
    """Return the `count` neurons that add most to the logit of `token` after these ids, the largest effect first."""
    paths, table = effects(model, ids, token)
    best = table.flatten().topk(count).indices
    layers, rows, numbers = (one.tolist() for one in torch.unravel_index(best, table.shape))
    return [Neuron(paths[n], t, f, float(table[n, t, f])) for n, t, f in zip(layers, rows, numbers, strict=True)]


def of_one_row(neurons: Sequence[Neuron], count: int) -> list[Neuron]:
    """Return the first `count` neurons that stand in the block and row of the first."""
    first = neurons[0]
    return [n for n in neurons if (n.path, n.row) == (first.path, first.row)][:count]


@dataclass(frozen=True)
class Network:
    """Some neurons of one block and row with what leads in and out. inputs: {channel: its number}.  rest: of all other channels.

    values: of the neurons.  weights: what each input adds to each neuron's sum, its number times the weight; the last row is all other
    channels and the bias.  effects: what each neuron adds to each word's logit.  gap: of the sums to those of the run.
    """

    inputs: dict[int, float]
    values: list[float]
    weights: list[list[float]]
    effects: list[list[float]]
    gap: float


def network(run: Trace, neurons: Sequence[Neuron], tokens: Sequence[int], count: int) -> Network:
    """Read the network around neurons of one block and row off a run: the `count` inputs that add most to them, and words' logits."""
    model, first = run.runner, neurons[0]
    numbers = [n.number for n in neurons]
    made = run.all(first.path)[0]
    before = run.all(made.inputs[0])[0]  # the sums that the activation bends
    x = run.all(before.inputs[0])[0].value[0, first.row].double()
    matrix = model.module.get_parameter(before.weights[0]).detach().double()[numbers]
    bias = torch.zeros(len(numbers), dtype=torch.float64, device=x.device)
    if len(before.weights) > 1:
        bias = model.module.get_parameter(before.weights[1]).detach().double()[numbers]
    parts = (matrix * x).T  # [D n]
    best = parts.abs().sum(-1).topk(count).indices
    others = torch.ones(len(x), dtype=torch.bool, device=x.device)
    others[best] = False
    weights = torch.cat([parts[best], (parts[others].sum(0) + bias)[None]])
    sums = before.value[0, first.row, numbers].double()
    given = [effects(model, run.ids, token) for token in tokens]
    at = given[0][0].index(first.path)
    words: list[list[float]] = torch.stack([table[at, first.row, numbers] for _, table in given], -1).tolist()
    values: list[float] = made.value[0, first.row, numbers].tolist()
    inputs = {int(d): float(x[d]) for d in best}
    return Network(inputs, values, weights.tolist(), words, float((weights.sum(0) - sums).abs().max()))


def probability(run: Trace, token: int) -> float:
    """Return the probability of a token after a recorded prompt."""
    return candidates(tokenizer_of(run.runner), run.last_logits(0), [token])[0].probability


def logit_moves(a: Trace, b: Trace, tokens: Sequence[int]) -> list[float]:
    """Return how far the logits of tokens after a recorded prompt move from run a to run b."""
    moves: list[float] = (b.last_logits(0).double() - a.last_logits(0).double())[list(tokens)].tolist()
    return moves
