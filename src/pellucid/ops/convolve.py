"""Short convolutions over time, a channel at a time: what some layers have in attention's place (LFM2, arXiv 2511.23404)."""

import torch
from torch import Tensor

from pellucid.batch.kv_cache import KVCache, PagedRows, Segment
from pellucid.ops import native
from pellucid.ops.attend import walk
from pellucid.ops.kinds import OpKind
from pellucid.ops.precision import wide
from pellucid.watching.tap import note
from pellucid.watching.terms import Index, Terms

CONVOLVE = OpKind("convolve", lambda m: f"conv({m.x}, {m.weights[0]}){m.bias}", product=True, result="product")


def convolve(x: Tensor, kv_cache: KVCache, weight: Tensor, bias: Tensor | None, place: int = 0) -> Tensor:
    """Sum each channel's last J rows, each times its own number: y[t] = Σ_j weight[j] · x[t − J + 1 + j] + bias. Returns [B T ...].

    x [B T ...]: this step's rows, which `kv_cache` has stored behind the earlier ones of each text; `place`: as which of its tensors.
    weight [J ...], bias [...], of x's channels.  FLOPs: 2·J for each number.
    """
    batched = kv_cache.batched
    if isinstance(batched, PagedRows) and native.fits_convolve(x, batched.pools[place], batched.tables, batched.positions, weight, bias):
        y = native.convolve(batched.pools[place], batched.tables, batched.positions, batched.size, weight, bias)
    else:
        y = walk((x,), kv_cache, lambda segment, cut: convolve_one(cut[0], segment, weight, bias, place))

    def terms(i: Index) -> Terms:
        segment = next(s for s in kv_cache.segments if in_slice(i[1], s.rows))
        own = slice(i[1] - (segment.rows.start or 0), i[1] - (segment.rows.start or 0) + 1)
        last = last_rows(segment, len(weight), segment.q_at[:, own], place)
        rows, channel = last[i[0] if last.shape[0] > 1 else 0, 0].flatten(1), torch.arange(weight[0].numel()).view(weight[0].shape)[i[2:]]
        terms = Terms(x=rows[:, channel], weight=weight.flatten(1)[:, channel])
        return terms.plus(bias=None if bias is None else bias.flatten()[channel])

    def again(weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return walk((x,), kv_cache, lambda segment, cut: convolve_reference(segment, weight, bias, place))

    flops = 2 * y.numel() * len(weight)
    return note(y, CONVOLVE.name, (x,), (weight, bias), terms, flops, settings=lambda: {"rows": len(weight)}, again=again)


def in_slice(row: int, rows: slice) -> bool:
    """True if a slice of rows has this one."""
    return rows.start is None or rows.start <= row < rows.stop


def convolve_one(x: Tensor, segment: Segment, weight: Tensor, bias: Tensor | None, place: int) -> Tensor:
    """Convolve one segment's rows by the kernel, if it fits."""
    paged = segment.paged
    if paged is not None and native.fits_convolve(x, paged.pools[place], paged.table, segment.q_at, weight, bias):
        return native.convolve(paged.pools[place], paged.table, segment.q_at, paged.size, weight, bias)
    return convolve_reference(segment, weight, bias, place)


def convolve_reference(segment: Segment, weight: Tensor, bias: Tensor | None, place: int) -> Tensor:
    """Convolve one segment's rows [B T ...]: summed wide, from the earliest row to the latest, and rounded once."""
    last, w = last_rows(segment, len(weight), segment.q_at, place), weight.to(wide(weight.dtype))
    y = w.new_zeros(()) if bias is None else bias.to(w.dtype)
    for j in range(len(w)):
        y = y + last[:, :, j].to(w.dtype) * w[j]
    return y.to(weight.dtype)


def last_rows(segment: Segment, count: int, q_at: Tensor, place: int) -> Tensor:
    """Return the rows at each position of q_at [B T] and before it, [B T count ...], the latest last; zeros before a text's start."""
    rows, k_at = segment.read()[place], segment.k_at
    at = q_at[..., None] - torch.arange(count - 1, -1, -1, device=q_at.device)
    if segment.contiguous:
        places = at - k_at[:, :1, None]
    else:  # padding, whose position is -1, is put behind all others
        places = k_at.new_zeros(len(k_at), k_at.shape[1] + 1).scatter_(
            1, k_at % (k_at.shape[1] + 1), torch.arange(k_at.shape[1]).expand_as(k_at)
        )
        places = places.gather(1, at.clamp(min=0).flatten(1)).view_as(at)
    batch = torch.arange(len(rows), device=rows.device)[:, None, None]
    return rows[batch, places.clamp(min=0)] * (at >= 0).view(*at.shape, *[1] * (rows.ndim - 2))
