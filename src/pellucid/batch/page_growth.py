"""More pages for a cache that is in use: what a batch of forks needs is known only when all of them are."""

from torch import Tensor

from pellucid import huge_pages
from pellucid.batch.kv_cache import PagedCache


def grow(cache: PagedCache, count: int) -> None:
    """Add free pages to the parts without a window, up to `count` in all. Pools move, so no recorded plan may point to them."""
    allocator = cache.allocators[None]
    new = max(0, count - allocator.count)
    allocator.free[:0] = range(allocator.count + new - 1, allocator.count - 1, -1)  # taken after those that are free now
    allocator.references += [0] * new
    allocator.allocated_at += [0] * new
    allocator.count += new
    cache.count += new
    for part, pools in cache.pools.items():
        if cache.of(part) is allocator:
            cache.pools[part] = tuple(lengthened(pool, allocator.count * cache.size) for pool in pools)
    for part, states in cache.states.items():
        if cache.of(part) is allocator:
            cache.states[part] = lengthened(states, 2 * allocator.count)


def lengthened(pool: Tensor, rows: int) -> Tensor:
    """Return a pool with zeros below its rows, up to `rows` in all."""
    if rows <= len(pool):
        return pool
    longer = huge_pages.zeros((rows, *pool.shape[1:]), pool.dtype, pool.device)
    longer[: len(pool)] = pool
    return longer
