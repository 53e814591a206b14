"""Attention from one row of each of many requests by one call of a kernel, on a CPU or a GPU."""

from torch import Tensor

from pellucid.batch.kv_cache import KVCache, ScatteredRows
from pellucid.batch.mask import Mask
from pellucid.ops import gpu, native


def attend_batched(q: Tensor, kv_cache: KVCache, mask: Mask, scale: float) -> Tensor | None:
    """Attend from the rows of many requests in one call of a kernel. Each row has the bits of a lone run. None if no kernel takes them."""
    a = kv_cache.batched
    if a is None:
        return None
    if isinstance(a, ScatteredRows):
        return native.cross_attend(q, a.like, a.addresses, scale) if native.fits_cross_attend(q, a.like, mask) else None
    if gpu.fits_attend(q, a, mask):
        return gpu.attend(q, a, scale, mask)
    with native.any_rows():  # walking the segments would cost more
        fits = native.fits_attend(q, a.pools, a.tables, a.positions, mask)
    return native.attend(q, a.pools, a.tables, a.positions, a.size, scale, mask, runs=a.runs) if fits else None
