"""Attention over a latent cache (MLA, arXiv 2405.04434), in two forms of one mathematics.

The expanded form multiplies the latent by up_k and up_v to get keys and values. The absorbed form multiplies the query by up_k and the
output by up_v, and reads the latent alone. One token over 4,096 absorbs, a prompt of 4,096 expands: the op takes the form with fewer
multiply-adds, unless the Config names one.
"""

import torch
from torch import Tensor

from pellucid.batch.gathered import gathered
from pellucid.batch.kv_cache import KVCache, PagedRows, Segment
from pellucid.batch.mask import Mask
from pellucid.ops import native
from pellucid.ops.attend import attend_reference, attend_sdpa, outline, pattern_terms, stored_rows, walk
from pellucid.ops.kinds import OpKind
from pellucid.ops.linear import LINEAR
from pellucid.watching.meta import META
from pellucid.watching.recomputing import gap, recomputing
from pellucid.watching.tap import Settings, as_reference, deferred, inside, note, seen_by, tap, visit_segments
from pellucid.watching.terms import Index, Terms

ATTEND_LATENT = OpKind("attend latent", lambda m: "pattern · v", product=True, result="attention")

FORMS = "absorbed", "expanded"

INSIDE = "k", "v", "scores", "pattern"


def products(t: int, s: int, h: int, k: int, r: int, w: int, c: int) -> tuple[int, int]:
    """Return the multiply-adds of the (absorbed, expanded) form for T rows over S keys; the parameters are the legend's letters."""
    return t * h * c * (k + w) + t * s * h * (c + r + c), s * h * c * (k + w) + t * s * h * (k + r + w)


def grow(latent: Tensor, up: Tensor, named: Tensor | None = None) -> Tensor:
    """Multiply latent [B S C] by up [H . C], a half of kv_b's weight. Returns [B S H .].

    named: the tapped latent, if `latent` was read from pages.
    """
    y = torch.einsum("bsc,hkc->bshk", latent, up.to(latent.device))
    return note(y, LINEAR.name, (latent if named is None else named,), (up,), lambda i: Terms(x=latent[i[:2]], weight=up[i[2:]]))


def attend_latent(q: Tensor, q_rot: Tensor, kv_cache: KVCache, up: Tensor, mask: Mask, scale: float, form: str | None = None) -> Tensor:
    """Attend from q [B T H K] and q_rot [B T H R] to a cache of latents [B S C] and shared keys [B S R]. Returns z [B T H W].

    up: kv_b's weight [H K+W C].  form: of FORMS, for every segment; None takes the one with fewer multiply-adds for each.
    """

    up_k, up_v = ups = up.split([q.shape[3], up.shape[1] - q.shape[3]], 1)
    a = kv_cache.batched

    def fits(content: Tensor, rotary: Tensor, pools: tuple[Tensor, ...], table: Tensor, at: Tensor, seen: Mask) -> bool:
        return form != "expanded" and native.fits_latent(content, rotary, pools, ups, table, at, seen)

    def chosen(segment: Segment) -> str:
        """Return the form of this segment."""
        if alone(segment, mask.of(segment)):
            return "absorbed"
        absorbed, expanded = products(segment.q_at.shape[1], stored_rows(segment), *widths(q.shape, q_rot.shape, up_v))
        return form or ("absorbed" if absorbed < expanded else "expanded")

    def alone(segment: Segment, seen: Mask) -> bool:
        """True if the absorbed kernel takes this segment: it has pages and one row, or any number of rows inside any_rows()."""
        p = segment.paged
        if p is None or segment.q_at.shape[1] > native.most(1):
            return False
        return fits(q[:, segment.rows], q_rot[:, segment.rows], p.pools, p.table, segment.q_at, seen)

    def grown(segment: Segment) -> tuple[Tensor, Tensor]:
        latent, shared = segment.read()
        return with_shared(grow(latent, up_k), shared), grow(latent, up_v)

    def one(segment: Segment, cut: tuple[Tensor, ...]) -> Tensor:
        content, rotary = cut
        seen, mode, paged = mask.of(segment), inside(*INSIDE), segment.paged
        if mode == "reference":
            with as_reference():
                return reference(segment, content, rotary)
        if alone(segment, seen):
            assert paged is not None
            z = native.attend_latent(content, rotary, paged.pools, ups, paged.table, segment.q_at, paged.size, scale, seen)
        elif chosen(segment) == "absorbed":
            latent, shared = segment.read()
            moved = torch.cat([torch.einsum("bthk,hkc->bthc", content, up_k), rotary], -1)
            key = torch.cat([latent, shared], -1)[:, :, None]
            z = torch.einsum("bthc,hwc->bthw", attend_sdpa(moved, key, latent[:, :, None], segment, seen, scale), up_v)
        else:
            k, v = grown(segment)
            z = attend_sdpa(torch.cat([content, rotary], -1), k, v, segment, seen, scale)
        if mode is not None:
            shown(mode, segment, content, rotary, z)
        return z

    def reference(segment: Segment, content: Tensor, rotary: Tensor) -> Tensor:
        return in_the_open(torch.cat([content, rotary], -1), named, segment, up_k, up_v, mask.of(segment), scale)

    def shown(mode: str, segment: Segment, content: Tensor, rotary: Tensor, z: Tensor) -> None:
        if mode == "beside":
            with recomputing(z) as compare:
                compare(reference(segment, content, rotary))
        else:
            with deferred(lambda: gap(reference(segment, content, rotary), z)):
                k, _ = tap_grown(segment.read()[0].to(META), up_k, up_v, named)
                outline(content, segment, mask.of(segment), scale, content.shape[3] + rotary.shape[3], (*named[:2], k, *named[3:]))

    named = q, q_rot, *kv_cache.new
    if isinstance(a, PagedRows) and inside(*INSIDE) != "reference" and fits(q, q_rot, a.pools, a.tables, a.positions, mask):
        z = native.attend_latent(q, q_rot, a.pools, ups, a.tables, a.positions, a.size, scale, mask)
        visit_segments(kv_cache.segments, INSIDE, lambda mode, p: shown(mode, p, q[:, p.rows], q_rot[:, p.rows], z[:, p.rows]))
    elif inside(*INSIDE) != "reference" and (rows := gathered(kv_cache)) is not None:
        with seen_by():
            z = one(rows, (q.transpose(0, 1), q_rot.transpose(0, 1))).transpose(0, 1).contiguous()
    else:
        z = walk((q, q_rot), kv_cache, one)

    def flops() -> int:
        sizes = [products(p.q_at.shape[1], stored_rows(p), *widths(q.shape, q_rot.shape, up_v)) for p in kv_cache.segments]
        return 2 * q.shape[0] * sum(pair[FORMS.index(chosen(p))] for pair, p in zip(sizes, kv_cache.segments, strict=True))

    def settings() -> Settings:
        return {"form": ", ".join(sorted({chosen(p) for p in kv_cache.segments}))}

    def terms(i: Index) -> Terms:
        return pattern_terms(torch.cat([q, q_rot], -1), kv_cache, mask, scale, grown)(i)

    def again(up: Tensor) -> Tensor:
        k, v = up.split([up_k.shape[1], up_v.shape[1]], 1)
        return walk((q, q_rot), kv_cache, lambda p, cut: in_the_open(torch.cat(cut, -1), named, p, k, v, mask.of(p), scale))

    return note(z, ATTEND_LATENT.name, (q, q_rot, *kv_cache.new, *mask.inputs), (up,), terms, flops, settings, again)


def widths(q: torch.Size, q_rot: torch.Size, up_v: Tensor) -> tuple[int, int, int, int, int]:
    """Return (H, K, R, W, C)."""
    return q[2], q[3], q_rot[3], up_v.shape[1], up_v.shape[2]


def with_shared(k: Tensor, shared: Tensor) -> Tensor:
    """Append the rotary key [B S R] that all heads share to each head's own k [B S H K]. Returns [B S H (K R)]."""
    return torch.cat([k, shared[:, :, None].expand(*k.shape[:3], -1)], -1)


def tap_grown(latent: Tensor, up_k: Tensor, up_v: Tensor, named: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Expand the latent to keys [B S H K] and values [B S H W], and tap both."""
    return tap(grow(latent, up_k, named[2]), "k: B S H K"), tap(grow(latent, up_v, named[2]), "v: B S H W")


def in_the_open(q: Tensor, named: tuple[Tensor, ...], segment: Segment, up_k: Tensor, up_v: Tensor, mask: Mask, scale: float) -> Tensor:
    """Attend by the reference in the expanded form, with keys and values tapped."""
    latent, shared = segment.read()
    k, v = tap_grown(latent, up_k, up_v, named)
    return attend_reference(q, segment, mask, scale, (*named[:2], k, *named[3:]), (with_shared(k, shared), v))
