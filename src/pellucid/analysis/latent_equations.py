"""The eleven equations of MLA (arXiv 2405.04434, equations 37 to 47), each computed by hand from a run's own tensors and compared with it.

DeepSeek's code has a norm after both latents, which the paper names apart from the equations.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pellucid import ops
from pellucid.analysis.rows import largest_gap
from pellucid.nn.latent import Latent
from pellucid.ops.norm import rms
from pellucid.tracing import Trace

SYMBOLS = "c^Q", "q^C", "q^R", "q", "c^KV", "k^C", "k^R", "k", "v^C", "o", "u"


@dataclass(frozen=True, eq=False)
class Equation:
    """One equation. symbol: what it gives, of SYMBOLS.  path: of that tensor in the run, of both for a pair.  dims: its axes.

    matrix: the sizes of its weight, "" without one.  value: computed by hand, in float64.  gap: to the run's tensor; None for a pair, which
    no op computes.  stored: whether the cache keeps it.
    """

    symbol: str
    text: str
    path: str
    dims: str
    matrix: str
    value: Tensor
    gap: float | None
    stored: bool = False

    @property
    def shape(self) -> str:
        """Return the tensor's sizes, "1 × 5 × 4 × 16"."""
        return " × ".join(map(str, self.value.shape))

    @property
    def name(self) -> str:
        """Return the tensor's path in its block."""
        return self.path.replace("layers.0.", "")

    def cell(self, row: Any, column: Any) -> tuple[Any, ...]:
        """Return the index of a number of `rows` in the tensor; () for a pair, which no op computes."""
        return () if self.gap is None else (0, row, column) if self.value.ndim == 3 else (0, row, 0, column)

    def rows(self, channels: int) -> list[list[float]]:
        """Return the first channels of each token's row, in head 0."""
        own = self.value[0] if self.value.ndim == 3 else self.value[0, :, 0]
        numbers: list[list[float]] = own[:, :channels].tolist()
        return numbers


def equations(run: Trace) -> list[Equation]:
    """Compute the equations of block 0 over a run's prompt, each from the run's tensors before it.

    A model whose queries come straight from h has no equation for c^Q.
    """
    return list(computed(run, "layers.0.attn"))


def computed(run: Trace, attn: str) -> Iterator[Equation]:
    """Yield the equations of the attention at a path."""
    own = {s.path: s for s in run if s.step == 0}
    part: Latent = run.runner.module.get_submodule(attn)
    s, rope, x = part.spec, part.spec.rope, own[f"{attn}_norm"].value.double()

    def seen(name: str) -> Tensor:
        value: Tensor = own[f"{attn}.{name}" if name else attn].value
        return value.double()

    def weight(name: str) -> Tensor:
        dense = part.get_submodule(name).weight
        return dense.detach().double()  # type: ignore[operator]

    def sizes(w: Tensor) -> str:
        return " × ".join(map(str, w.shape))

    at = torch.arange(x.shape[1], device=x.device)[None]
    angles = ops.angles(at, rope, x.dtype)

    def rotated(y: Tensor) -> Tensor:
        return ops.rotate(y, angles, rope.interleaved)

    def equation(symbol: str, text: str, name: str, dims: str, w: Tensor | None, value: Tensor, stored: bool = False) -> Equation:
        return Equation(
            symbol,
            text,
            f"{attn}.{name}" if name else attn,
            dims,
            "" if w is None else sizes(w),
            value,
            largest_gap(value, seen(name)),
            stored,
        )

    queries, source, start = (weight("q"), "h", x) if part.q_a is None else (weight("q_b"), "c^Q", seen("q_norm"))
    if part.q_a is not None:
        down = weight("q_a")
        yield equation("c^Q", "c^Q = norm(W^DQ · h)", "q_norm", "B T Q", down, rms(x @ down.T, weight("q_norm"), s.eps))
    content, rotary = queries.unflatten(0, (-1, s.key + rope.width)).split([s.key, rope.width], 1)
    q_c = torch.einsum("btd,hkd->bthk", start, content)
    q_r = rotated(torch.einsum("btd,hrd->bthr", start, rotary))
    made, letters = seen("q")[..., : s.key], "B T H K"
    yield Equation("q^C", f"q^C = W^UQ · {source}", f"{attn}.q", letters, sizes(content.flatten(0, 1)), q_c, largest_gap(q_c, made))
    yield equation("q^R", f"q^R = RoPE(W^QR · {source})", "q_rot", "B T H R", rotary.flatten(0, 1), q_r)
    q = torch.cat([made, seen("q_rot")], -1)
    yield Equation("q", "q = [q^C ; q^R]", f"{attn}.q | {attn}.q_rot", "B T H K+R", "", q, None)

    low, shared = weight("kv_a").split([s.kv_rank, rope.width], 0)
    latent = rms(x @ low.T, weight("kv_norm"), s.eps)
    yield equation("c^KV", "c^KV = norm(W^DKV · h)", "latent", "B S C", low, latent, True)
    up_k, up_v = weight("kv_b").unflatten(0, (-1, s.key + s.value)).split([s.key, s.value], 1)
    yield equation("k^C", "k^C = W^UK · c^KV", "k", "B S H K", up_k.flatten(0, 1), torch.einsum("bsc,hkc->bshk", seen("latent"), up_k))
    k_r = rotated((x @ shared.T).unsqueeze(2)).squeeze(2)
    yield equation("k^R", "k^R = RoPE(W^KR · h)", "k_shared", "B S R", shared, k_r, True)
    k = torch.cat([seen("k"), seen("k_shared")[:, :, None].expand(*seen("k").shape[:3], -1)], -1)
    yield Equation("k", "k = [k^C ; k^R]", f"{attn}.k | {attn}.k_shared", "B S H K+R", "", k, None)
    yield equation("v^C", "v^C = W^UV · c^KV", "v", "B S H W", up_v.flatten(0, 1), torch.einsum("bsc,hwc->bshw", seen("latent"), up_v))
    scores = torch.einsum("bthk,bshk->bhts", q, k) * part.scale
    hidden = torch.ones(scores.shape[-2:], device=x.device, dtype=torch.bool).triu(1)
    pattern = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    o = torch.einsum("bhts,bshw->bthw", pattern, seen("v"))
    yield equation("o", "o = Σ softmax(q · k / √(K + R)) · v^C", "z", "B T H W", None, o)
    out = weight("o")
    yield equation("u", "u = W^O · [o_1 ; … ; o_H]", "", "B T D", out, seen("z").flatten(-2) @ out.T)


def channel_names(rows: list[list[float]]) -> list[str]:
    """Return the numbers of the channels of rows as texts."""
    return [str(n) for n in range(len(rows[0]))]
