"""Splitting rows into heads and joining them: the right way, a wrong way, one map for all heads, and what more heads cost."""

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pellucid import config as c
from pellucid.analysis.quality import Quality, capitals, quality, subjects
from pellucid.api.model import Model
from pellucid.nn.attention import Attention
from pellucid.tracing import watch
from pellucid.training.corpus import fill
from pellucid.watching.meta import META

JOINED = "layers.0.attn.z"
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


def stages(x: Tensor, heads: int) -> list[Tensor]:
    """Return rows x [B T D] as they are after each step: as they come, split, swapped, swapped back, merged; last, merged unswapped.

    [B T D] -> [B T H K] -> [B H T K] -> [B T H K] -> [B T D], and [B H T K] -> [B T D] by a reshape alone.
    """
    apart = split(x, heads)
    return [x, apart.transpose(1, 2), apart, apart.transpose(1, 2), join(apart), join_by_reshape(apart)]


def place(x: Tensor, number: int) -> str:
    """Return the index of the cell of x that holds a number: "[1, 2, 389]". A number that x has once."""
    (index,) = (x == number).nonzero().tolist()
    return str(index)


def number_at(batch: int, row: int, channel: int, rows: int, width: int) -> int:
    """Return the number that a `ramp` of rows [B T D] holds at one cell. rows, width: T and D."""
    return (batch * rows + row) * width + channel


def named_cells(rows: int, width: int) -> Tensor:
    """Return rows [1 T D] in which a number names its cell: 21 is channel 1 of token 2. width: at most 10."""
    return (10 * torch.arange(rows)[:, None] + torch.arange(width))[None]


def as_table(x: Tensor, axes: str) -> tuple[list[str], list[list[float | None]]]:
    """Return the first text of x as a table: the names of its rows, "T=0 H=1", and their numbers. axes: the letters of all but B and K."""
    names = [""]
    for letter, size in zip(axes, x.shape[1:], strict=False):
        names = [f"{name} {letter}={n}".strip() for name in names for n in range(size)]
    return names, x[0].flatten(0, -2).tolist()


def joined_by_reshape(model: Model) -> Quality:
    """Ask for the capitals while every block joins its heads by a reshape alone."""

    def wrong(z: Tensor) -> Tensor:
        return join_by_reshape(z.transpose(1, 2)).view_as(z)

    with watch(model, only=(), edit={"layers.*.attn.z": wrong}):
        return quality(model)


def with_one_map(model: Model) -> Quality:
    """Ask for the capitals while every head of a block weighs tokens as its first head does."""

    def first(pattern: Tensor) -> Tensor:
        return pattern[:, :1].expand_as(pattern)

    with watch(model, only=(), edit={"layers.*.attn.pattern": first}):
        return quality(model)


def ramp(*sizes: int) -> Tensor:
    """Return a tensor of these sizes that holds 0, 1, 2, ..."""
    return torch.arange(torch.Size(sizes).numel()).view(sizes)


def equally_long(model: Model, count: int) -> list[str]:
    """Return `count` questions for capitals that have the same number of tokens, so that a batch of them pads nothing."""
    by_length, form = defaultdict[int, list[str]](list), capitals().held_out["capital", "en"][0]
    for name in subjects().values():
        prompt = fill(form, name)
        by_length[len(model.ids(prompt))].append(prompt)
    return max(by_length.values(), key=len)[:count]


def head_of_batch(model: Model, prompts: Sequence[str], head: int) -> tuple[Tensor, Tensor]:
    """Run prompts as one batch; return what the heads of block 0 give [B H T K], and of one of them [B T K]."""
    with torch.no_grad(), watch(model, only=JOINED) as seen:
        model(torch.tensor([model.ids(prompt) for prompt in prompts], device=model.device))
    z = seen[JOINED].value.transpose(1, 2)
    return z, z[:, min(head, z.shape[1] - 1)]


def lone_gap(model: Model, prompts: Sequence[str], head: int, cube: Tensor, moved: int = 0) -> float:
    """Return how far each slice of a batch [B T K] is from its prompt run alone. moved: with the prompt this far on."""
    own = [head_of_batch(model, [prompts[(i + moved) % len(prompts)]], head)[1][0] for i in range(len(prompts))]
    return float((cube - torch.stack(own)).abs().max())


def parameters(width: int, heads: int) -> int:
    """Return the number of parameters of an attention whose heads share `width`, with biases."""
    spec = c.Attention(heads, heads, width // heads, bias=True, out_bias=True)
    with META:
        part = Attention(c.Config(1, width, (c.Layer(spec, c.Mlp(1)),)), spec)
    return sum(p.numel() for p in part.parameters())


def head_slice(width: int, heads: int) -> str:
    """Write the sizes of one head's slice of W_Q: "64 × 512"."""
    return f"{width // heads} × {width}"


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
