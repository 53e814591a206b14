"""Attention from one row of each of many requests by one call of a kernel, on a CPU or a GPU."""

from torch import Tensor

from pellucid.batch.kv_cache import KVCache, ScatteredRows
from pellucid.batch.mask import Mask
from pellucid.ops import gpu, native


def fits_batched(q: Tensor, kv_cache: KVCache, mask: Mask) -> bool:
    """True if one native call can serve all segments."""
    a = kv_cache.batched
    if isinstance(a, ScatteredRows):
        return native.fits_cross_attend(q, a.like, mask)
    if a is None:
        return False
    if gpu.fits_attend(q, a, mask):
        return True
    with native.any_rows():  # walking the segments would cost more
        return native.fits_attend(q, a.pools, a.tables, a.positions, mask)


def attend_batched(q: Tensor, kv_cache: KVCache, mask: Mask, scale: float) -> Tensor:
    """Attend from the rows of many requests in one native call. Each row has the bits of a lone run."""
    a = kv_cache.batched
    assert a is not None
    if isinstance(a, ScatteredRows):
        return native.cross_attend(q, a.like, a.addresses, scale)
    if gpu.fits_attend(q, a, mask):
        return gpu.attend(q, a, scale, mask)
    return native.attend(q, a.pools, a.tables, a.positions, a.size, scale, mask)
