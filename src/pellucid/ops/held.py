"""Keys and values held in int8: each head's numbers of a token as codes times one scale, the largest of them over 127.

    k of a head    0.30 -1.27 0.02 ...      codes  30 -127 2 ...      scale 0.01      held  0.30 -1.27 0.02 ...

Every row is rounded by itself and always read back rounded, by its own step too, so a text has the same numbers in any batch and any
chunks. The scale has the dtype of the activations. A row with a NaN or an infinity is read back as NaN.
"""

import torch
from torch import Tensor

from pellucid import huge_pages
from pellucid.batch.kv_cache import KVCache, Paged, PagedRows
from pellucid.batch.plain_rows import PLAIN, PlainRows, Stored
from pellucid.config import Attention, Config
from pellucid.errors import UseError
from pellucid.ops import native
from pellucid.ops.kinds import OpKind
from pellucid.ops.precision import wide
from pellucid.watching.tap import here, note
from pellucid.watching.terms import Index, Terms

MOST = 127  # the largest code
HELD = OpKind("int8", lambda m: f"round({m.x} / scale) · scale, scale = max|{m.x}| / {MOST}")


def to_int8(x: Tensor) -> Stored:
    """Return codes [... K] and scales [...] of x [... K]."""
    scales = x.abs().amax(-1) / MOST
    codes = (x.to(wide(x.dtype)) / scales.to(wide(x.dtype))[..., None]).round().clamp(-MOST, MOST)
    return codes.nan_to_num(0.0).to(torch.int8), scales


def from_int8(codes: Tensor, scales: Tensor) -> Tensor:
    """Return the numbers [... K] of codes [... K] and scales [...], in the dtype of the scales."""
    return (codes.to(wide(scales.dtype)) * scales.to(wide(scales.dtype))[..., None]).to(scales.dtype)


class Int8Rows(PlainRows):
    """Rows [heads numbers] in int8: the pools are the codes of each stored tensor, then the scales of each."""

    def pools(self, like: Stored, count: int) -> Stored:
        codes = tuple(huge_pages.zeros((count, *n.shape[2:]), torch.int8, n.device) for n in like)
        return *codes, *(huge_pages.zeros((count, *n.shape[2:-1]), n.dtype, n.device) for n in like)

    def places(self, pools: Stored) -> tuple[Stored, ...]:
        half = len(pools) // 2
        return tuple(zip(pools[:half], pools[half:], strict=True))

    def write(self, pools: Stored, slots: Tensor, new: Stored) -> None:
        for place, n in zip(self.places(pools), new, strict=True):
            if native.fits_store_int8(n, place, slots):
                native.store_int8(n, place, slots, torch.arange(len(slots))[None], 1)
            else:
                for pool, part in zip(place, to_int8(n[0]), strict=True):
                    pool.index_copy_(0, slots, part)

    def read(self, pools: Stored, at: Tensor | slice) -> Stored:
        if isinstance(at, Tensor) and all(native.fits_held_int8(place, at) for place in self.places(pools)):
            each = torch.arange(len(at))[None]
            return tuple(native.held_int8(place, at, each, 1)[0] for place in self.places(pools))
        return tuple(from_int8(codes[at], scales[at]) for codes, scales in self.places(pools))


INT8 = Int8Rows()
FORMATS = {"int8": INT8}


def format_for(cfg: Config, name: str | None) -> PlainRows:
    """Return the format of a model's keys and values by its name, None for the dtype of the activations.

    Raises UseError for an unknown name, and for a model that stores anything but keys and values of each head.
    """
    if name is None:
        return PLAIN
    if name not in FORMATS:
        raise UseError("kv.format", found=name, allowed=", ".join(FORMATS))
    if cfg.encoder is not None:
        raise UseError("kv.source", name=name)
    for i, layer in enumerate(cfg.layers):
        for mixer in layer.mixers:
            if mixer.stored != Attention.stored:
                raise UseError("kv.layer", name=name, path=f"layers.{i}.{mixer.part}", kind=mixer.kind)
    return FORMATS[name]


def rows_held(kv_cache: KVCache) -> Stored | None:
    """Return this step's keys and values as the cache holds them, [1 T ...]. None without a watch, or if the cache changes nothing."""
    if not here.calls:
        return None
    rows, new = kv_cache.batched, kv_cache.new
    if isinstance(rows, PagedRows) and rows.format is PLAIN:
        return None
    if isinstance(rows, PagedRows) and all(p.paged is not None and p.paged.format is INT8 for p in kv_cache.segments):
        places = INT8.places(rows.pools)
        if all(native.fits_held_int8(place, rows.tables) for place in places):
            own = [native.held_int8(place, rows.tables, rows.positions, rows.size) for place in places]
            return tuple(noted(x, n) for x, n in zip(own, new, strict=True))
    paged = [(p.paged, p.q_at[0]) for p in kv_cache.segments if p.paged is not None and p.paged.format is INT8]
    if len(paged) < len(kv_cache.segments):
        return None
    parts = [INT8.read(place.pools, slots(place, at)) for place, at in paged]
    return tuple(noted(torch.cat(each)[None], n) for each, n in zip(zip(*parts, strict=True), new, strict=True))


def slots(place: Paged, at: Tensor) -> Tensor:
    """Return the pools' rows of these positions."""
    return (place.table[at.cpu() // place.size] * place.size + at.cpu() % place.size).to(place.pools[0].device)


def noted(x: Tensor, of: Tensor) -> Tensor:
    """Note that x is `of`, as it is held."""

    def terms(i: Index) -> Terms:
        codes, scale = to_int8(of[i[:-1]])
        return Terms(code=codes[i[-1]], scale=scale)

    return note(x, HELD.name, (of,), (), terms)
