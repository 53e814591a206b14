"""Attention, a GRU and a convolution of one width on the same rows: work, longest chain, and which row reaches which."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor, nn

from pellucid.analysis.independence import ATTENTION, step_of
from pellucid.api.model import Model
from pellucid.nn.recurrent import CausalConvolution, Gru
from pellucid.watching.records import Seen
from pellucid.watching.tap import tap
from pellucid.watching.watch import watch

SEED = 0


@dataclass(frozen=True)
class LayerWork:
    """What a layer did with `rows` rows. flops: of its products.  chain: the most operations of which each needs the one before."""

    rows: int
    flops: int
    chain: int


class SequenceLayer(nn.Module):
    """A layer over rows [1 T D], whose output is recorded."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return tap(self.output(x), "out: B T D")

    def output(self, x: Tensor) -> Tensor:
        """Return the layer's rows [1 T D]."""
        return self.layer(x)  # type: ignore[no-any-return]


class AttentionLayer(SequenceLayer):
    """A SequenceLayer of an attention, which also reads the rows' positions."""

    def output(self, x: Tensor) -> Tensor:
        return self.layer(x, step_of(x))  # type: ignore[no-any-return]


def attention(model: Model) -> SequenceLayer:
    """Return the attention of the first block."""
    return AttentionLayer(model.module.get_submodule(ATTENTION))


def drawn(layer: nn.Module, model: Model) -> SequenceLayer:
    """Return a layer with weights drawn for its width, where and as the model's are."""
    draw = torch.Generator().manual_seed(SEED)
    for p in layer.parameters():
        p.data = torch.randn(p.shape, generator=draw, dtype=torch.float64).div(p.shape[-1] ** 0.5).to(model.device, model.dtype)
        p.requires_grad_(False)
    return SequenceLayer(layer)


def gru(model: Model) -> SequenceLayer:
    """Return a GRU of the model's width."""
    return drawn(Gru(model.config.width), model)


def convolution(model: Model, kernel: int, layers: int = 1, dilated: bool = False) -> SequenceLayer:
    """Return causal convolutions of the model's width, one after another. dilated: each by `kernel` more than the one before."""
    stack = (CausalConvolution(model.config.width, kernel, kernel**n if dilated else 1) for n in range(layers))
    return drawn(nn.Sequential(*stack), model)


def random_rows(model: Model, rows: int) -> Tensor:
    """Return drawn rows [1 T D]; work and chains do not depend on their numbers."""
    return torch.randn(1, rows, model.config.width, generator=torch.Generator().manual_seed(SEED)).to(model.device, model.dtype)


def work(layer: SequenceLayer, x: Tensor) -> LayerWork:
    """Run a layer on rows and count what it did. The reference of attention runs, whose operations are recorded one by one."""
    with watch(layer, inside="reference") as seen:
        layer(x)
    return LayerWork(x.shape[1], sum(seen.flops.values()), longest_chain(seen))


def longest_chain(records: Iterable[Seen]) -> int:
    """Return the longest chain of recorded operations. A path that is recorded again stands for its newest tensor."""
    length: dict[str, int] = {}
    longest = 0
    for s in records:
        before = max((length.get(path, 0) for path in s.inputs), default=0)
        length[s.path] = before + (s.op is not None)
        longest = max(longest, length[s.path])
    return longest


def influence(layer: SequenceLayer, x: Tensor) -> list[list[float | None]]:
    """Return, for each row and each row that is changed, the largest change: [T][T], None where nothing changes.

    A changed row takes the numbers of the row before it, the first those of the last.
    """
    plain, columns = layer(x), list[list[float]]()
    for t in range(x.shape[1]):
        changed = x.clone()
        changed[0, t] = x[0, t - 1]
        columns.append((layer(changed) - plain)[0].abs().amax(-1).tolist())
    return [[column[t] or None for column in columns] for t in range(x.shape[1])]


def reaching(values: Sequence[Sequence[float | None]]) -> int:
    """Return how many rows reach the last one."""
    return sum(value is not None for value in values[-1])


def layers_needed(model: Model, rows: int, kernel: int, dilated: bool) -> int:
    """Return after how many convolutions a change of the first row reaches the last."""
    x, other = random_rows(model, rows), random_rows(model, rows)
    other[0, 0] += 1
    layers = convolution(model, kernel, rows, dilated).layer.children()
    for n, layer in enumerate(layers, 1):
        x, other = layer(x), layer(other)
        if bool((x[0, -1] != other[0, -1]).any()):
            return n
    return rows


def dilated_layers(rows: int, kernel: int) -> int:
    """Return log of `rows` to the base `kernel`, rounded up: layers of a dilated convolution (arXiv 1706.03762, table 1)."""
    return next(n for n in count() if kernel**n >= rows)


def contiguous_layers(rows: int, kernel: int) -> int:
    """Return (rows - 1) / (kernel - 1), rounded up: layers of a convolution without dilation."""
    return math.ceil((rows - 1) / (kernel - 1))
