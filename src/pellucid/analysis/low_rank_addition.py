"""What a low-rank addition (LoRA, arXiv 2106.09685) does to one matrix of a model, and how few numbers it has."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pellucid.analysis.rows import largest_gap
from pellucid.api.model import Model
from pellucid.api.variant import variant
from pellucid.nn.adapted import AdaptedLinear, Addition, add, remove
from pellucid.nn.linear import Linear
from pellucid.nn.low_rank import thinnable

ADAPTER = "exhibit"
SEED = 0


@dataclass(frozen=True)
class AddedTo:
    """One matrix [m n] with an addition of a rank.

    numbers: of A and B.  idle: the largest change of a logit while B is 0.  moved: with a B drawn at random.  merged: the largest
    difference between the product beside the matrix and the matrix with it merged.
    """

    path: str
    shape: tuple[int, int]
    rank: int
    numbers: int
    idle: float
    moved: float
    merged: float

    @property
    def full(self) -> int:
        """Return the numbers of the matrix itself."""
        return self.shape[0] * self.shape[1]


def added(model: Model, prompt: str, rank: int, merges: int = 1) -> AddedTo:
    """Put an addition on the first matrix of the first block, on a copy that shares the weights, and compare logits.

    merges: how often it is merged into the matrix, 1 in a merge.
    """
    own = variant(model, {})
    path, layer = next((path, m) for path, m in thinnable(own.module).items() if path.startswith("layers.0."))
    ids = torch.tensor([model.ids(prompt)], device=model.device)
    plain = model(ids)
    a, b = drawn((rank, layer.in_features), layer.weight), drawn((layer.out_features, rank), layer.weight)
    addition = attach(own.module, path, layer, a, nn.Parameter(torch.zeros_like(b), requires_grad=False))
    idle = own(ids)
    addition.lora_b.weight.copy_(b)
    with_addition = own(ids)
    merge(layer, merges)
    numbers = a.numel() + b.numel()
    gaps = largest_gap(plain, idle), largest_gap(plain, with_addition), largest_gap(with_addition, own(ids))
    return AddedTo(path, (layer.out_features, layer.in_features), rank, numbers, *gaps)


def drawn(shape: tuple[int, int], like: Tensor) -> nn.Parameter:
    """Draw a thin matrix whose columns have the size of the rows of `like`."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64) / max(shape) ** 0.5
    return nn.Parameter(values.to(like.device, like.dtype), requires_grad=False)


def attach(module: nn.Module, path: str, layer: Linear, a: nn.Parameter, b: nn.Parameter) -> Addition:
    """Put an addition of scale 1 on the matrix at `path`."""
    above, _, leaf = path.rpartition(".")
    axes: str = getattr(module.get_submodule(above), "axes")[leaf]  # noqa: B009
    addition = Addition(a, b, 1.0, axes, "T")
    add(layer, ADAPTER, addition)
    return addition


def merge(layer: Linear, times: int) -> None:
    """Take the addition off a matrix, which becomes W + times · B·A; the shared weight stays as it is."""
    assert isinstance(layer, AdaptedLinear)
    own = layer.weight
    sum_of = own + times * (layer.dense_weight() - own)
    remove(layer, ADAPTER)
    layer.weight = nn.Parameter(sum_of, requires_grad=False)


def by_rank(model: Model, ranks: Sequence[int]) -> Iterator[tuple[int, int, float]]:
    """Yield (rank, numbers, share of the model's parameters) of additions to every matrix of the blocks: r·(m + n) for each."""
    ends = [m.in_features + m.out_features for m in thinnable(model.module).values()]
    for rank in ranks:
        yield rank, rank * sum(ends), rank * sum(ends) / model.num_parameters()
