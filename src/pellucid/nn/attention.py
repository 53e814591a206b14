"""Attention over a request's own KV cache, and over an encoder's rows. MHA, MQA and GQA are one class: they differ in kv_heads alone."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from pellucid import config as c
from pellucid import ops
from pellucid.batch.kv_cache import KVCache, Segment
from pellucid.batch.mask import Mask, alibi, around, bidirectional, causal, chunk, relative, slopes, window
from pellucid.batch.step import Step
from pellucid.distributed import ALONE
from pellucid.nn.linear import Embedding, Linear
from pellucid.nn.norm import NORMS, HeadsLayerNorm, HeadsRmsNorm
from pellucid.watching.tap import tap


class Attention(nn.Module):
    """x [B T D] -> [B T D]: every head's weighted sum of the values it sees. arXiv 1706.03762, 2305.13245.

    table: the learned bias for each bucket of distance and head [U H], which all layers share.
    """

    axes = {"q": "(H K) D", "k": "(G K) D", "v": "(G K) D", "gate": "(H K) D", "head_gate": "H D", "o": "D (H K)", "distance": "(H K) D",
            "q_norm": "K", "k_norm": "K", "sinks": "H", "relative": "U H"}  # fmt: skip
    reads_source: tuple[str, ...] = ()  # the projections that read the encoder's rows
    indexer = None  # MLA may have one
    ranks = ALONE  # that share its heads

    def __init__(self, cfg: c.Config, spec: c.Attention, table: Embedding | None = None) -> None:
        super().__init__()
        self.width = spec.width
        self.scale = spec.width**-0.5 if spec.scale is None else spec.scale
        self.q = Linear(cfg.width, spec.heads * spec.width, spec.bias)
        self.k = Linear(cfg.width, spec.kv_heads * spec.width, spec.bias)
        self.v = None if spec.v_from_k else Linear(cfg.width, spec.kv_heads * spec.width, spec.bias)
        self.o = Linear(spec.heads * spec.width, cfg.width, spec.out_bias)
        self.gate = Linear(cfg.width, spec.heads * spec.width, spec.bias) if spec.gated else None
        self.head_gate = Linear(cfg.width, spec.heads, False) if spec.gated_heads else None
        self.q_norm = qk_norm(cfg, spec, spec.heads) if spec.qk_norm else None
        self.k_norm = qk_norm(cfg, spec, spec.kv_heads) if spec.qk_norm else None
        if spec.qk_joint or spec.qk_own:
            self.axes = self.axes | {"q_norm": "(H K)", "k_norm": "(G K)"}
        self.sinks = nn.Parameter(torch.zeros(spec.heads)) if spec.sinks else None
        self.relative = table
        self.buckets = spec.buckets
        self.rope, self.norm_turned, self.clip = spec.rope, spec.norm_turned, spec.clip
        self.key_factor = spec.key_factor if spec.key_factor != 1.0 else None
        self.rms_eps, self.v_eps = cfg.eps if spec.qk_rms else None, cfg.eps if spec.v_rms else None
        self.temperature = spec.temper
        self.cap = spec.cap
        self.fill = spec.fill
        self.alibi = alibi(slopes(spec.heads), spec.alibi) if spec.alibi else None
        self.distance = Linear(cfg.width, spec.heads * spec.width, False) if spec.distances else None
        self.base = causal if spec.causal else bidirectional
        rules = ((window if spec.causal else around, spec.window), (chunk, spec.chunk))
        self.limits = [make(n) for make, n in rules if n is not None]
        self.window = min((n for n in (spec.window, spec.chunk) if n is not None), default=None)  # the most positions that a query sees

    def forward(self, x: Tensor, step: Step) -> Tensor:
        x = self.ranks.shared(x)
        q = tap(self.q(x).unflatten(-1, (-1, self.width)), "q: B T H K")
        k, v = self.project_kv(x, "T")
        if self.clip is not None:
            q, k = tap(ops.clipped(q, self.clip), "q_clipped: B T H K"), tap(ops.clipped(k, self.clip), "k_clipped: B T G K")
            v = tap(ops.clipped(v, self.clip), "v_clipped: B T G K")
        if self.key_factor is not None:
            k = tap(ops.scaled(k, self.key_factor), "k_scaled: B T G K")
        if not self.norm_turned:
            q, k = self.apply_norms(q, k)
        if self.rope is not None:
            q, k = self.apply_rope(q, k, self.rope, step)
        if self.norm_turned:
            q, k = self.apply_norms(q, k)
        if self.rms_eps is not None:
            q, k = tap(ops.rms(q, None, self.rms_eps), "q_even: B T H K"), tap(ops.rms(k, None, self.rms_eps), "k_even: B T G K")
        if self.v_eps is not None:
            v = tap(ops.rms(v, None, self.v_eps), "v_even: B T G K")
        if self.temperature is not None:
            q = tap(ops.scale_by_position(q, step.position_ids, self.temperature), "q_grown: B T H K")
        kv_cache, mask = self.keep(step, k, v), self.mask(step)
        if self.distance is not None:
            mask = self.add_distances(mask, q, self.distance)
        z = tap(ops.attend(q, kv_cache, mask, self.scale), "z: B T H K")
        if self.gate is not None:
            gate = tap(ops.sigmoid(tap(self.gate(x).unflatten(-1, (-1, self.width)), "gate: B T H K")), "gate_share: B T H K")
            z = tap(ops.times(z, gate), "z_gated: B T H K")
        if self.head_gate is not None:
            z = tap(ops.gated(z, tap(self.head_gate(x).unsqueeze(-1), "head_gate: B T H 1")), "z_weighed: B T H K")
        return self.o(z.flatten(-2))  # type: ignore[no-any-return]

    def project_kv(self, x: Tensor, length: str) -> tuple[Tensor, Tensor]:
        """Project x to keys and values [B T G K]. `length` is the letter of its rows: T, or S for an encoder's."""
        k = tap(self.k(x).unflatten(-1, (-1, self.width)), f"k: B {length} G K")
        v = ops.identity(k) if self.v is None else self.v(x).unflatten(-1, (-1, self.width))
        return k, tap(v, f"v: B {length} G K")

    def keep(self, step: Step, k: Tensor, v: Tensor) -> KVCache:
        """Append keys and values to the cache. A cache in int8 holds others than it is given: a watch sees them, and an edit is stored."""
        kv_cache = step.store(self, k, v)
        if (rows := ops.rows_held(kv_cache)) is not None:
            kept = tap(rows[0], "k_held: B T G K"), tap(rows[1], "v_held: B T G K")
            if any(one is not other for one, other in zip(kept, rows, strict=True)):
                kv_cache = step.store(self, *kept)
            kv_cache.new = kept
        return kv_cache

    def apply_norms(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Norm q and k, where there are norms."""
        if self.q_norm is None or self.k_norm is None:
            return q, k
        return tap(self.q_norm(q), "q_norm: B T H K"), tap(self.k_norm(k), "k_norm: B T G K")

    def angles(self, q: Tensor, rope: c.Rope, step: Step) -> tuple[Tensor, Tensor]:
        """Return the angles of the step's positions in the dtype of q, which all layers share."""
        angles: tuple[Tensor, Tensor] = step.shared((rope, q.dtype), lambda: ops.angles(step.positions, rope, q.dtype, step.totals))
        return angles

    def apply_rope(self, q: Tensor, k: Tensor, rope: c.Rope, step: Step) -> tuple[Tensor, Tensor]:
        """Rotate q and k by their positions."""
        angles = self.angles(q, rope, step)
        q = tap(ops.rotate(q, angles, rope.interleaved, rope), "q_rot: B T H K")
        return q, tap(ops.rotate(k, angles, rope.interleaved, rope), "k_rot: B T G K")

    def mask(self, step: Step) -> Mask:
        """Return the mask of this step: the caller's or the layer's own, its window, and what it adds to scores."""
        mask = step.mask or self.base
        for limit in self.limits:
            mask = mask & limit
        if self.cap is not None:
            mask = replace(mask, cap=self.cap)
        if self.fill is not None:
            mask = replace(mask, fill=self.fill)
        if self.sinks is not None:
            mask = replace(mask, sinks=self.sinks, weights=(self.sinks,))
        if self.relative is not None and self.buckets is not None:
            table = self.relative.weight
            mask = replace(mask, bias=relative(table, self.buckets), weights=(*mask.weights, table))
        if self.alibi is not None:
            mask = replace(mask, bias=self.alibi)
        return mask

    def add_distances(self, mask: Mask, q: Tensor, distance: Linear) -> Mask:
        """Add q · r to every score, where r is a key made of the distance alone (arXiv 1901.02860, without its vectors u and v)."""
        scale = self.scale

        def by_segment(mask: Mask, segment: Segment) -> Mask:
            by_distance = ops.distances(q[:, segment.rows] * scale, mask.weights[-1], segment.k_at.shape[1])
            last = by_distance.shape[-1] - 1  # by_distance: B H T and the distances from 0 on

            def bias(q_at: Tensor, k_at: Tensor) -> Tensor:
                back = (q_at - k_at).clamp(0, last)
                return by_distance.gather(-1, back.expand(*by_distance.shape[:3], -1))

            return replace(mask, bias=bias)

        return replace(mask, by_segment=by_segment, weights=(*mask.weights, distance.dense_weight()))


def qk_norm(cfg: c.Config, spec: c.Attention, heads: int) -> nn.Module:
    """Return the norm of queries or keys: of each head by itself, with one weight or its own, or of all heads of a row together."""
    if spec.qk_joint or spec.qk_own:
        return (HeadsLayerNorm if spec.qk_own else HeadsRmsNorm)(heads * spec.width, cfg.eps)
    return NORMS[cfg.norm](spec.width, cfg.eps)


class CrossAttention(Attention):
    """Queries from the decoder; keys and values from the encoder's rows, computed once for each request."""

    reads_source = "k", "v"

    def forward(self, x: Tensor, step: Step) -> Tensor:
        q = tap(self.q(self.ranks.shared(x)).unflatten(-1, (-1, self.width)), "q: B T H K")
        memory = step.memory(self, lambda rows: self.project_kv(self.ranks.shared(rows), "S"))
        z = tap(ops.attend(q, memory, self.mask(step), self.scale), "z: B T H K")
        return self.o(z.flatten(-2))  # type: ignore[no-any-return]

    def mask(self, step: Step) -> Mask:
        return bidirectional


class KeptKeysAttention(Attention):
    """Attention whose keys and values later layers read too."""

    def keep(self, step: Step, k: Tensor, v: Tensor) -> KVCache:
        kv_cache = step.once["keys", self.window] = super().keep(step, k, v)
        return kv_cache


class SharedKeysAttention(Attention):
    """Queries alone: keys and values are those of the last layer of this window that kept its own (Gemma 4 E2B)."""

    def __init__(self, cfg: c.Config, spec: c.Attention, table: Embedding | None = None) -> None:
        assert not (spec.clip or spec.norm_turned or spec.qk_rms or spec.temper or spec.distances or spec.gated or spec.gated_heads)
        super().__init__(cfg, spec, table)
        self.k = self.v = self.k_norm = None  # type: ignore[assignment]

    def forward(self, x: Tensor, step: Step) -> Tensor:
        q = tap(self.q(self.ranks.shared(x)).unflatten(-1, (-1, self.width)), "q: B T H K")
        if self.q_norm is not None:
            q = tap(self.q_norm(q), "q_norm: B T H K")
        if self.rope is not None:
            q = tap(ops.rotate(q, self.angles(q, self.rope, step), self.rope.interleaved, self.rope), "q_rot: B T H K")
        z = tap(ops.attend(q, step.once["keys", self.window], self.mask(step), self.scale), "z: B T H K")
        return self.o(z.flatten(-2))  # type: ignore[no-any-return]
