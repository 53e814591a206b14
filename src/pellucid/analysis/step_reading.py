"""The attention of one decode step over a long cache, as the engine runs it, for kinds of attention of the same heads."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pellucid import ops
from pellucid.batch.kv_cache import KVCache, Paged, Segment
from pellucid.batch.mask import causal
from pellucid.watching.tap import tap
from pellucid.watching.watch import watch

HEADS, WIDTH, CONTEXT = 32, 128, 2048  # of Llama-2-7B: heads and their width; tokens in the cache
RANK, ROTARY = 512, 64  # of DeepSeek-V3's latent and its shared key
LATENT = f"MLA {RANK}+{ROTARY}"
GROUPS = {"MHA": HEADS, "GQA": 8, "MQA": 1}


class OneStep(nn.Module):
    """A step's attention, whose output is recorded. run(): returns z [1 1 H W]."""

    def __init__(self, run: Callable[[], Tensor]) -> None:
        super().__init__()
        self.run = run

    def forward(self) -> Tensor:
        return tap(self.run(), "z: B T H W")


@dataclass(frozen=True, eq=False)
class CacheReading:
    """One step's attention. kv_heads: None of a latent.  read: bytes of the cache that it reads."""

    kind: str
    kv_heads: int | None
    read: int
    step: OneStep

    @property
    def flops(self) -> int:
        """Return the FLOPs of its products, counted as it runs."""
        with watch(self.step) as seen:
            self.step()
        return sum(s.flops or 0 for s in seen)


def cached(*rows: Tensor) -> KVCache:
    """Return a cache of one text's stored rows [S ...] in one page, with the last of them as this step's."""
    count = rows[0].shape[0]
    stored, at = tuple(r[None] for r in rows), torch.arange(count)[None]
    page = Paged(rows, torch.zeros(1, dtype=torch.long), count, count)
    return KVCache([Segment(None, slice(None), at[:, -1:], lambda: at, lambda: stored, True, page)], stored)


def filled(*shape: int) -> Tensor:
    """Return a tensor of numbers from -1 to 1, over and over; which they are does not matter to the time."""
    return torch.arange(math.prod(shape)).remainder(251).div(125).sub(1).view(shape)


def grouped_reading(kind: str, kv_heads: int) -> CacheReading:
    """Return a step whose heads share keys and values in groups."""
    q, k, v = filled(1, 1, HEADS, WIDTH), filled(CONTEXT, kv_heads, WIDTH), filled(CONTEXT, kv_heads, WIDTH)
    cache = cached(k, v)
    return CacheReading(kind, kv_heads, k.nbytes + v.nbytes, OneStep(lambda: ops.attend(q, cache, causal, WIDTH**-0.5)))


def latent_reading() -> CacheReading:
    """Return a step of latent attention, its queries moved to the latent."""
    q, q_rot, up = filled(1, 1, HEADS, WIDTH), filled(1, 1, HEADS, ROTARY), filled(HEADS, 2 * WIDTH, RANK)
    latent, shared = filled(CONTEXT, RANK), filled(CONTEXT, ROTARY)
    cache = cached(latent, shared)
    scale = (WIDTH + ROTARY) ** -0.5
    step = OneStep(lambda: ops.attend_latent(q, q_rot, cache, up, causal, scale, "absorbed"))
    return CacheReading(LATENT, None, latent.nbytes + shared.nbytes, step)


def readings() -> list[CacheReading]:
    """Return a step of every kind."""
    return [*(grouped_reading(kind, heads) for kind, heads in GROUPS.items()), latent_reading()]
