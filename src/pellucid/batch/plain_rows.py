"""Rows of pages held as they come. A cache may hold them otherwise: see ops.held."""

from torch import Tensor

from pellucid import huge_pages

Stored = tuple[Tensor, ...]


class PlainRows:
    """A format of rows: the pools that hold them, a write and a read. This one changes nothing."""

    def pools(self, like: Stored, count: int) -> Stored:
        """Make the pools of `count` rows for tensors like these, [B T ...]."""
        return tuple(huge_pages.zeros((count, *n.shape[2:]), n.dtype, n.device) for n in like)

    def places(self, pools: Stored) -> tuple[Stored, ...]:
        """Return, for each stored tensor, the pools that hold it."""
        return tuple((pool,) for pool in pools)

    def write(self, pools: Stored, slots: Tensor, new: Stored) -> None:
        """Write the rows of `new` [1 T ...] to the pools' rows `slots` [T]."""
        for pool, n in zip(pools, new, strict=True):
            pool.index_copy_(0, slots, n[0])

    def read(self, pools: Stored, at: Tensor | slice) -> Stored:
        """Return the stored tensors [rows ...] of the pools' rows at these slots."""
        return tuple(pool[at] for pool in pools)


PLAIN = PlainRows()
