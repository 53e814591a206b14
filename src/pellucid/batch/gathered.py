"""One row of each of many requests as a plain batch: every request's pages gathered, for an op that has no kernel for pages on a GPU.

tables [[2, 0], [1, 3]], pages of 2, positions [2, 1]      rows   4 5 0 1 | 2 3 6 7        positions   0 1 2 -1 | 0 1 -1 -1
"""

import torch

from pellucid.batch.kv_cache import KVCache, PagedRows, Segment
from pellucid.batch.plain_rows import Stored


def gathered(kv_cache: KVCache) -> Segment | None:
    """Return the rows [n 1] of a batch and the places [n S] of their tables as a segment. None unless they lie on a GPU for one call.

    S is that of the longest text that fits, so the shapes are those of every step.
    """
    a = kv_cache.batched
    if not isinstance(a, PagedRows) or a.positions.is_cpu:
        return None
    places = torch.arange(a.tables.shape[1] * a.size, device=a.tables.device)
    q_at = a.positions.transpose(0, 1)

    def read() -> Stored:
        slots = a.tables[:, places // a.size] * a.size + places % a.size
        return tuple(rows.unflatten(0, slots.shape) for rows in a.format.read(a.pools, slots.flatten()))

    return Segment(None, slice(None), q_at, lambda: torch.where(places <= q_at, places, -1), read)
