"""Splitting rows into heads and joining them: the right way, a wrong way, and what more heads cost."""

from collections.abc import Callable

import torch
from torch import Tensor

from pellucid import config as c
from pellucid.analysis.quality import Quality, quality
from pellucid.api.model import Model
from pellucid.nn.attention import Attention
from pellucid.tracing import watch
from pellucid.watching.meta import META

Joining = Callable[[Tensor], Tensor]


def split(x: Tensor, heads: int) -> Tensor:
    """Split rows [B T D] into heads, which come before the rows as each works alone: [B H T K]."""
    apart: Tensor = x.unflatten(-1, (heads, -1))
    return apart.transpose(1, 2)


def join(z: Tensor) -> Tensor:
    """Join heads [B H T K] to rows [B T D]: the rows come first again, then the channels of all heads."""
    return z.transpose(1, 2).flatten(-2)


def join_by_reshape(z: Tensor) -> Tensor:
    """Join heads [B H T K] to [B T D] by a reshape alone, which puts numbers of several tokens into one row."""
    return z.reshape(z.shape[0], z.shape[2], -1)


def joined_by_reshape(model: Model) -> Quality:
    """Ask for the capitals while every block joins its heads by a reshape alone."""

    def wrong(z: Tensor) -> Tensor:
        return join_by_reshape(z.transpose(1, 2)).view_as(z)

    with watch(model, only=(), edit={"layers.*.attn.z": wrong}):
        return quality(model)


def ramp(*sizes: int) -> Tensor:
    """Return a tensor of these sizes that holds 0, 1, 2, ..."""
    return torch.arange(torch.Size(sizes).numel()).view(sizes)


def parameters(width: int, heads: int) -> int:
    """Return the number of parameters of an attention whose heads share `width`, with biases."""
    spec = c.Attention(heads, heads, width // heads, bias=True, out_bias=True)
    with META:
        part = Attention(c.Config(1, width, (c.Layer(spec, c.Mlp(1)),)), spec)
    return sum(p.numel() for p in part.parameters())


def moved_rows(joining: Joining, heads: int, rows: int, width: int) -> int:
    """Return how many rows of a table differ after it was split into heads and joined again by `joining`."""
    table = ramp(1, rows, heads * width)
    return int((joining(split(table, heads)) != table).any(-1).sum())


def head_gap(pattern: Tensor) -> float:
    """Return the largest difference of a weight between head 0 and another head of a pattern [1 H T S]."""
    return float((pattern[0] - pattern[0, :1]).abs().max())


def shape(x: Tensor) -> str:
    """Write a tensor's sizes: "[4, 16, 512]"."""
    return str([*x.shape])
