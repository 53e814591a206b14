"""Attention over a model's own cache, and over an encoder's rows. MHA, MQA and GQA are one class: they differ in kv_heads alone."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from pellucid import config as c
from pellucid import ops
from pellucid.batch.kv_cache import KVCache, Segment
from pellucid.batch.mask import Mask, alibi, bidirectional, causal, chunk, relative, slopes, window
from pellucid.batch.step import Step
from pellucid.nn.linear import Embedding, Linear
from pellucid.nn.norm import NORMS
from pellucid.watching.tap import tap


class Attention(nn.Module):
    """x [B T D] -> [B T D]: every head's weighted sum of the values it sees. arXiv 1706.03762, 2305.13245."""

    axes = {"q": "(H K) D", "k": "(G K) D", "v": "(G K) D", "o": "D (H K)",
            "q_norm": "K", "k_norm": "K", "sinks": "H", "relative": "U H"}  # fmt: skip

    def __init__(self, cfg: c.Config, spec: c.Attention, table: Embedding | None = None) -> None:
        super().__init__()
        self.width = spec.width
        self.scale = spec.width**-0.5 if spec.scale is None else spec.scale
        self.q = Linear(cfg.width, spec.heads * spec.width, spec.bias)
        self.k = Linear(cfg.width, spec.kv_heads * spec.width, spec.bias)
        self.v = Linear(cfg.width, spec.kv_heads * spec.width, spec.bias)
        self.o = Linear(spec.heads * spec.width, cfg.width, spec.out_bias)
        self.q_norm = NORMS[cfg.norm](spec.width, cfg.eps) if spec.qk_norm else None
        self.k_norm = NORMS[cfg.norm](spec.width, cfg.eps) if spec.qk_norm else None
        self.sinks = nn.Parameter(torch.zeros(spec.heads)) if spec.sinks else None
        self.relative, self.rope, self.buckets, self.cap = table, spec.rope, spec.buckets, spec.cap
        self.slope = alibi(slopes(spec.heads), spec.alibi) if spec.alibi else None
        self.base = causal if spec.causal else bidirectional
        self.limits = [make(n) for make, n in ((window, spec.window), (chunk, spec.chunk)) if n is not None]
        self.window = min((n for n in (spec.window, spec.chunk) if n is not None), default=None)  # how many positions a query sees at most
        self.temper, self.eps = spec.temper, cfg.eps
        self.changes = [self.normed] * spec.qk_norm + [self.turned] * (spec.rope is not None)
        self.changes += [self.evened] * spec.qk_rms + [self.tempered] * (spec.temper is not None)
        self.extras = [self.capped] * (spec.cap is not None) + [self.sunk] * spec.sinks + [self.biased] * (table is not None)
        self.extras += [self.sloped] * (spec.alibi is not None)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        q = tap(self.q(x).unflatten(-1, (-1, self.width)), "q: B T H K")
        q, kv_cache = self.look_back(q, x, step)
        z = tap(ops.attend(q, kv_cache, self.seen(q, step), self.scale), "z: B T H K")
        return self.o(z.flatten(-2))  # type: ignore[no-any-return]

    def look_back(self, q: Tensor, x: Tensor, step: Step) -> tuple[Tensor, KVCache]:
        """The queries as they will meet keys, and all keys and values that this layer has stored."""
        k, v = self.keys(x, "T")
        for change in self.changes:
            q, k = change(q, k, step)
        return q, step.store(self, k, v)

    def keys(self, x: Tensor, length: str) -> tuple[Tensor, Tensor]:
        """Keys and values of x, whose rows are `length`: T, or the source's S."""
        k = tap(self.k(x).unflatten(-1, (-1, self.width)), f"k: B {length} G K")
        return k, tap(self.v(x).unflatten(-1, (-1, self.width)), f"v: B {length} G K")

    def normed(self, q: Tensor, k: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        assert self.q_norm is not None and self.k_norm is not None
        return tap(self.q_norm(q), "q_norm: B T H K"), tap(self.k_norm(k), "k_norm: B T G K")

    def turned(self, q: Tensor, k: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        rope = self.rope
        assert rope is not None
        turn = step.shared((rope, q.dtype), lambda: ops.angles(step.positions, rope, q.dtype, step.totals))
        q = tap(ops.rotate(q, turn, rope.interleaved, rope), "q_rot: B T H K")
        return q, tap(ops.rotate(k, turn, rope.interleaved, rope), "k_rot: B T G K")

    def evened(self, q: Tensor, k: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        return tap(ops.rms(q, None, self.eps), "q_even: B T H K"), tap(ops.rms(k, None, self.eps), "k_even: B T G K")

    def tempered(self, q: Tensor, k: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        assert self.temper is not None
        return tap(ops.tempered(q, step.places, self.temper), "q_grown: B T H K"), k

    def seen(self, q: Tensor, step: Step) -> Mask:
        """The mask of these queries."""
        return self.mask(step)

    def mask(self, step: Step) -> Mask:
        """What this layer's queries may see in this step."""
        mask = step.mask or self.base
        for limit in self.limits:
            mask = mask & limit
        for extra in self.extras:
            mask = extra(mask)
        return mask

    def capped(self, mask: Mask) -> Mask:
        return replace(mask, cap=self.cap)

    def sunk(self, mask: Mask) -> Mask:
        assert self.sinks is not None
        return replace(mask, sinks=self.sinks, weights=(self.sinks,))

    def sloped(self, mask: Mask) -> Mask:
        return replace(mask, bias=self.slope)

    def biased(self, mask: Mask) -> Mask:
        assert self.relative is not None and self.buckets is not None
        table = self.relative.weight
        return replace(mask, bias=relative(table, self.buckets), weights=(*mask.weights, table))


class DistantAttention(Attention):
    """Scores gain q · r, r one more key, of the distance alone (arXiv 1901.02860, without its two biases of queries)."""

    axes = Attention.axes | {"distance": "(H K) D"}

    def __init__(self, cfg: c.Config, spec: c.Attention, table: Embedding | None = None) -> None:
        super().__init__(cfg, spec, table)
        self.distance = Linear(cfg.width, spec.heads * spec.width, False)

    def seen(self, q: Tensor, step: Step) -> Mask:
        def by_segment(mask: Mask, segment: Segment) -> Mask:
            by_distance = ops.distances(q[:, segment.rows] * self.scale, self.distance.matrix(), segment.k_at.shape[1])
            last = by_distance.shape[-1] - 1

            def bias(q_at: Tensor, k_at: Tensor) -> Tensor:
                back = (q_at - k_at).clamp(0, last)
                return by_distance.gather(-1, back.expand(*by_distance.shape[:3], -1))

            return replace(mask, bias=bias)

        mask = self.mask(step)
        return replace(mask, by_segment=by_segment, weights=(*mask.weights, self.distance.weight))


class CrossAttention(Attention):
    """Queries from the decoder; keys and values from the encoder's rows, computed once for each request."""

    def look_back(self, q: Tensor, x: Tensor, step: Step) -> tuple[Tensor, KVCache]:
        return q, step.memory(self, lambda rows: self.keys(rows, "S"))

    def mask(self, step: Step) -> Mask:
        return bidirectional
