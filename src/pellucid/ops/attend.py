"""Attention: softmax(q·k / √K + the mask's biases) · v, each request against its own cache.

The reference makes every table and taps it. The twins give the same z without the table of scores: torch's fused kernel, and one pass
over the pages in place. Only this op chooses between them. While a watch keeps the tables, the native kernel writes them as it goes;
beside any other twin the reference runs.
"""

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid.batch.gathered import gathered
from pellucid.batch.kv_cache import KVCache, Paged, Segment
from pellucid.batch.mask import Mask, causal, conditions_of
from pellucid.ops import native
from pellucid.ops.attend_batched import attend_batched
from pellucid.ops.gate import SOFTMAX, bounded, part_of_row
from pellucid.ops.kinds import Operands, OpKind, cut, plain, scaling
from pellucid.ops.precision import wide
from pellucid.watching.emptied_rows import require_keys
from pellucid.watching.meta import META
from pellucid.watching.recomputing import gap, recomputing
from pellucid.watching.tap import as_reference, deferred, here, in_segment, inside, note, seen_by, tap, visit_segments
from pellucid.watching.terms import Index, Terms


def by_distance(m: Operands) -> str:
    """Write the summands that depend on distance alone: ALiBi's slopes, T5's table of buckets, keys of distances."""
    out = ""
    if m.setting("slopes") is not None:
        times = scaling(m.setting("slope_scale", 1.0)).replace("scale", plain(m.setting("slope_scale", 1.0)))
        out = f" + bfloat16(m[h] · s){times}" if m.setting("rounded") else f" − m[h] · |t − s|{times}"
    for w in m.weights:
        if w.endswith("distance"):
            out += f" + {m.inputs[0]}·(sincos(t − s) · {w}ᵀ)ᵀ{scaling(m.setting('scale'))}"
        else:
            out += f" + {w}[bucket(s − t), h]"
    return out


def scores_text(m: Operands) -> str:
    """Write q·kᵀ / √K, a sum of two products in latent attention, inside the soft cap if there is one, plus `by_distance`."""
    inner, bound = products(m) + scaling(m.setting("scale")), m.setting("cap")
    return (inner if bound is None else f"{plain(bound)} · tanh(({inner}) / {plain(bound)})") + by_distance(m)


def products(m: Operands) -> str:
    """Write the queries times the keys, one product for each pair of inputs."""
    half = len(m.inputs) // 2
    named = zip(m.inputs[:half], m.last[:half], m.inputs[half:], m.last[half:], strict=True)
    pairs = [f"{cut(q, q_axis, k_axis)}·{k}ᵀ" for q, q_axis, k, k_axis in named]
    return pairs[0] if len(pairs) == 1 else f"({' + '.join(pairs)})"


def values_name(m: Operands) -> str:
    """Write the name of the values; OLMo's are clipped and Gemma 4's normed, and have another name than v, or are another layer's."""
    return next((name for name in m.inputs if name.rpartition(".")[2].startswith("v_")), "v")


ATTEND = OpKind("attend", lambda m: f"pattern · {values_name(m)}", product=True, labels={"v": values_name}, result="attention")
SCORES = OpKind(
    "scores",
    scores_text,
    product=True,
    labels={
        "q": lambda m: " | ".join(m.inputs[: len(m.inputs) // 2]),
        "k": lambda m: " | ".join(m.inputs[len(m.inputs) // 2 :]),
        "cap": lambda m: plain(m.setting("cap")),
        "tanh": lambda m: f"tanh({products(m)}{scaling(m.setting('scale'))} / {plain(m.setting('cap'))})",
        "distance": lambda m: by_distance(m).removeprefix(" + ").removeprefix(" "),
    },
    result="scores",
)

INSIDE = "scores", "pattern"
TABLES = native.ReusedMemory(512 << 20)  # bytes: those of GPT-2 at 512 tokens take 300 MB


def attend(q: Tensor, kv_cache: KVCache, mask: Mask, scale: float) -> Tensor:
    """Attend from q [B T H K] to each request's own keys and values. Returns z [B T H W].

    FLOPs: 2·H·(K + W) for each pair of the full square.
    """
    named = (q, *kv_cache.new[:1])
    rows = None if inside(*INSIDE) == "reference" else attend_rows(q, kv_cache, mask, scale)
    if rows is not None:
        z = rows
        visit_segments(kv_cache.segments, INSIDE, lambda mode, p: shown(mode, q[:, p.rows], z[:, p.rows], p, mask.of(p), scale, named))
    else:
        z = walk((q,), kv_cache, lambda p, cut: attend_one(cut[0], p, mask, scale, named))

    def flops() -> int:
        seen = sum((p.q_at.shape[1]) * stored_rows(p) * q.shape[0] for p in kv_cache.segments)
        return 2 * seen * q.shape[2] * (q.shape[3] + z.shape[3])

    def again(*weights: Tensor) -> Tensor:
        own = mask.with_weights(weights)
        return walk((q,), kv_cache, lambda p, cut: attend_reference(cut[0], p, own.of(p), scale))

    terms = pattern_terms(q, kv_cache, mask, scale)
    return note(z, ATTEND.name, (q, *kv_cache.new, *mask.inputs), mask.weights, terms, flops, again=again if mask.weights else None)


def stored_rows(segment: Segment) -> int:
    """Return S, the number of keys of a segment."""
    return segment.paged.end - segment.paged.start if segment.paged is not None else segment.read()[0].shape[1]


def walk(q: tuple[Tensor, ...], kv_cache: KVCache, one: Callable[[Segment, tuple[Tensor, ...]], Tensor]) -> Tensor:
    """Call `one(segment, rows)` for each segment of the cache, with its rows of every q. Returns the results joined along T."""
    z = []
    for segment in kv_cache.segments:
        with in_segment(segment):
            z.append(one(segment, tuple(t[:, segment.rows] for t in q)))
    return (z[0] if len(z) == 1 else torch.cat(z, 1)).contiguous()


def attend_rows(q: Tensor, kv_cache: KVCache, mask: Mask, scale: float) -> Tensor | None:
    """Attend from one row of each of many requests at once, by a kernel, or on a GPU by torch. None unless their cache is ready for it."""
    if (z := attend_batched(q, kv_cache, mask, scale)) is not None:
        return z
    if (rows := gathered(kv_cache)) is None:
        return None
    with seen_by():
        return attend_one(q.transpose(0, 1), rows, mask, scale, ()).transpose(0, 1).contiguous()


def attend_one(q: Tensor, segment: Segment, mask: Mask, scale: float, named: tuple[Tensor, ...]) -> Tensor:
    """Attend from one segment's rows by the fastest twin that fits, and tap the tables if a watch wants them.

    named: the tapped operands of the scores.
    """
    mask = mask.of(segment)
    mode = inside(*INSIDE)
    if mode == "reference":
        with as_reference():
            return attend_reference(q, segment, mask, scale, named)
    tables = None
    if (paged := native_pages(q, segment, mask)) is not None:
        tables = empty_tables(q, paged) if mode == "beside" else None
        z = native.attend(q, paged.pools, paged.table, segment.q_at, paged.size, scale, mask, paged.end, tables)
    elif segment.memory and native.fits_cross_attend(q, segment.memory, mask):
        z = native.cross_attend(q, segment.memory, torch.tensor([native.kv_address(segment.memory)]).expand(q.shape[1], -1), scale)
    elif mask.cap is not None or mask.fill is not None:
        return attend_reference(q, segment, mask, scale, named)
    elif segment.paged is not None and q.shape[1] == 1:
        z = attend_pages(q, segment, mask, scale)
    else:
        k, v = segment.read()
        z = attend_sdpa(q, k, v, segment, mask, scale)
    if tables is not None:
        tap_tables(tables, q, segment, mask, scale, named)
    elif mode is not None:
        shown(mode, q, z, segment, mask, scale, named)
    return z


def empty_tables(q: Tensor, paged: Paged) -> native.KeptTables:
    """Return tables [1 H T S] for the kernel to fill, in memory that later ones are given again."""
    shape = 1, q.shape[2], q.shape[1], paged.end - paged.start
    return native.KeptTables(TABLES.empty(shape, q.dtype), TABLES.empty(shape, q.dtype), paged.start)


def again(q: Tensor, z: Tensor, segment: Segment, mask: Mask, scale: float) -> native.KeptTables | None:
    """Run one request of a batch through the native kernel once more, for its tables. None unless that gives z's bits."""
    if (paged := native_pages(q, segment, mask)) is None:
        return None
    if int(segment.q_at[0, -1]) + 1 != paged.end:  # rows of another step: the kernel would write beyond the tables
        return None
    tables = empty_tables(q, paged)
    same = native.attend(q, paged.pools, paged.table, segment.q_at, paged.size, scale, mask, paged.end, tables)
    return tables if torch.equal(same, z) else None


def shown(mode: str, q: Tensor, z: Tensor, segment: Segment, mask: Mask, scale: float, named: tuple[Tensor, ...]) -> None:
    """Tap the tables beside a kernel's z: their values if mode is "beside", otherwise their shapes, with the values computed on demand."""
    reference = partial(attend_reference, q, segment, mask, scale, named)

    def late() -> float | None:
        if (tables := again(q, z, segment, mask, scale)) is None:
            return gap(reference(), z)
        tap_tables(tables, q, segment, mask, scale, named)
        return None

    if mode == "beside" and (tables := again(q, z, segment, mask, scale)) is not None:
        tap_tables(tables, q, segment, mask, scale, named)
    elif mode == "beside":
        with recomputing(z) as compare:
            compare(reference())
    else:
        with deferred(late, native_pages(q, segment, mask) is not None):
            outline(q, segment, mask, scale, q.shape[3], named)


def native_pages(q: Tensor, segment: Segment, mask: Mask) -> Paged | None:
    """Return the pages of a segment for the native kernel, None if it does not take them. A segment without pages may be one page.

    The kernel finds a key by its position, so that page's keys stand at 0, 1, 2 ...
    """
    if torch.compiler.is_compiling():
        return None
    paged = segment.paged
    if paged is None and segment.contiguous and not segment.memory and (native.attends_any(q) or q.shape[1] <= native.most(0)):
        paged = one_page(segment)
    if paged is None or not native.fits_attend(q, paged.pools, paged.table, segment.q_at, mask, paged.end):
        return None
    in_place = segment.paged is not None or torch.equal(segment.k_at[0], torch.arange(paged.end))
    return paged if in_place else None


def one_page(segment: Segment) -> Paged | None:
    """Return a segment's keys and values as a single page, or None unless B is 1."""
    k, v = segment.read()
    return Paged((k[0], v[0]), torch.zeros(1, dtype=torch.long), k.shape[1], k.shape[1]) if k.shape[0] == 1 else None


def attend_reference(
    q: Tensor, segment: Segment, mask: Mask, scale: float, named: tuple[Tensor, ...] = (), stored: tuple[Tensor, ...] | None = None
) -> Tensor:
    """Compute softmax(q k^T) v step by step, with taps. stored: the keys and values, if they are not the segment's own."""
    k, v = stored or segment.read()
    groups = k.shape[2]
    split = q.unflatten(2, (groups, -1))
    allowed, bias = mask.materialize(segment.q_at, segment.k_at)
    scores = torch.einsum("btgrk,bsgk->bgrts", split * scale, k).flatten(1, 2)
    scores = scores if mask.cap is None else mask.cap * torch.tanh(scores / mask.cap)
    scores = scores if bias is None else scores + bias.to(scores.dtype)
    scores = tap_scores(scores, named, mask, scale, q.shape[3], score_terms(q, k, mask, scale, lambda: bias))
    present = mask.present(segment.q_at, segment.k_at, allowed)
    w = mask.hide(scores, allowed, present)
    sink = None if mask.sinks is None else mask.sinks.to(w.dtype)[:, None, None]
    w = w if sink is None else torch.cat([w, sink.expand(*w.shape[:-1], 1)], -1)
    require_keys(w, present, segment.q_at)
    pattern = softmax_of_own(w).to(q.dtype)[..., : k.shape[1]]
    if not (segment.contiguous and mask is causal):  # of a contiguous causal segment every row sees itself
        pattern = pattern.masked_fill(~present.any(-1, keepdim=True), 0.0)
    pattern = tap_pattern(pattern, scores, mask, share_terms(scores, mask, lambda: (allowed, present)))
    return torch.einsum("bgrts,bsgw->btgrw", pattern.unflatten(1, (groups, -1)), v).flatten(2, 3)


def softmax_of_own(w: Tensor) -> Tensor:
    """Return the softmax of a table that nothing else reads: in its own memory on a CPU, since a new one costs as much as its numbers."""
    if w.is_cpu and w.dtype is wide(w.dtype) and not (torch.is_grad_enabled() and w.requires_grad):
        return torch.softmax(w, -1, out=w)
    return w.softmax(-1, dtype=wide(w.dtype))


def score_terms(q: Tensor, k: Tensor, mask: Mask, scale: float, bias: Callable[[], Tensor | None]) -> Callable[[Index], Terms]:
    """Return a function from a cell of the scores [B H T S] to its terms. bias: makes the mask's biases."""

    def terms(i: Index) -> Terms:
        b, h, t, s = i
        query, key, own = q[b, t, h], k[b, s, h // (q.shape[2] // k.shape[2])], bias()
        if mask.cap is None:
            summands = Terms(q=query, k=key, **({} if scale == 1 else {"scale": scale}))
        else:
            summands = bounded(query.double() @ key.double() * scale, mask.cap)
        full = k.shape[0], q.shape[2], q.shape[1], k.shape[1]
        return summands.plus(distance=None if own is None else own.detach().expand(full)[i])

    return terms


def share_terms(scores: Tensor, mask: Mask, rules: Callable[[], tuple[Tensor, Tensor]]) -> Callable[[Index], Terms]:
    """Return a function from a cell of the pattern [B H T S] to its terms. rules: makes the mask's tables, allowed and present."""

    def terms(i: Index) -> Terms:
        row = mask.hide(*(table.expand_as(scores)[i[:-1]] for table in (scores, *rules()))).double()
        return part_of_row(row if mask.sinks is None else torch.cat([row, mask.sinks[i[1]].double().reshape(1)]), i[-1])

    return terms


def tap_scores(
    scores: Tensor, named: tuple[Tensor, ...], mask: Mask, scale: float, width: int, terms: Callable[[Index], Terms] | None = None
) -> Tensor:
    """Note and tap the table of scores [B H T S]."""
    biases = mask.weights[1:] if mask.sinks is not None else mask.weights
    cap = {} if mask.cap is None else {"cap": mask.cap}
    return tap(
        note(scores, SCORES.name, named, biases, terms, settings=lambda: {"scale": scale, "width": width, **cap, **mask.settings()}),
        "scores: B H T S",
    )


def tap_pattern(pattern: Tensor, scores: Tensor, mask: Mask, terms: Callable[[Index], Terms] | None = None) -> Tensor:
    """Note and tap the softmax of the scores [B H T S]."""
    weights = () if mask.sinks is None else (mask.sinks,)
    rule = {"mask": "chosen" if mask.inputs else conditions_of(mask.allowed)}
    own = rule if mask.fill is None else rule | {"fill": mask.fill}
    return tap(note(pattern, SOFTMAX.name, (scores, *mask.inputs), weights, terms, settings=lambda: own), "pattern: B H T S")


def outline(q: Tensor, segment: Segment, mask: Mask, scale: float, width: int, named: tuple[Tensor, ...]) -> None:
    """Tap the reference's tables on meta: shapes without values."""
    table = q.new_empty((q.shape[0], q.shape[2], q.shape[1], stored_rows(segment)), device=META)
    tap_pattern(torch.empty_like(table), tap_scores(table, named, mask, scale, width), mask)


def tap_tables(tables: native.KeptTables, q: Tensor, segment: Segment, mask: Mask, scale: float, named: tuple[Tensor, ...]) -> None:
    """Note and tap the tables that the kernel has written. A cell's terms read the keys that were stored when it ran."""
    k = segment.read()[0] if any(w.terms for w in here.watches) else q
    rules = cache(lambda: mask.materialize(segment.q_at, segment.k_at))
    scores = tap_scores(tables.scores, named, mask, scale, q.shape[3], score_terms(q, k, mask, scale, lambda: rules()[1]))

    def hidden() -> tuple[Tensor, Tensor]:
        allowed = rules()[0]
        return allowed, mask.present(segment.q_at, segment.k_at, allowed)

    tap_pattern(tables.pattern, scores, mask, share_terms(scores, mask, hidden))


def attend_sdpa(q: Tensor, k: Tensor, v: Tensor, segment: Segment, mask: Mask, scale: float) -> Tensor:
    """Attend by torch's fused kernel. A sink becomes one more key of zeros, whose bias is the sink and whose value is 0."""
    attn_mask = None
    # is_causal aligns upper-left: a cached chunk needs the mask
    if not (segment.contiguous and mask is causal and q.shape[1] in (1, k.shape[1])):
        allowed, bias = mask.materialize(segment.q_at, segment.k_at)
        attn_mask = allowed
        if bias is not None or mask.sinks is not None:
            shape = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
            added = torch.zeros((), dtype=q.dtype, device=q.device) if bias is None else bias.to(q.dtype)
            attn_mask = torch.where(allowed, added, float("-inf")).expand(shape)
        if mask.sinks is not None:
            attn_mask = torch.cat([mask.sinks.to(q.dtype)[None, :, None, None].expand(*attn_mask.shape[:3], 1), attn_mask], -1)
            k, v = F.pad(k, (0, 0, 0, 0, 1, 0)), F.pad(v, (0, 0, 0, 0, 1, 0))
    z = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=attn_mask,
        is_causal=attn_mask is None and q.shape[1] > 1,
        scale=scale,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return z.transpose(1, 2)


def attend_pages(q: Tensor, segment: Segment, mask: Mask, scale: float) -> Tensor:
    """Attend in one pass over the pages, with a running maximum, sum and output (arXiv 1805.02867), without a copy of the cache.

    If a block with scores 1, 3 follows one with 2, the old sum is multiplied by exp(2 - 3) before the new terms are added.
    """
    assert segment.paged is not None
    w = wide(q.dtype)
    top = q.new_full((1, q.shape[2], q.shape[1], 1), float("-inf"), dtype=w)
    total, z = torch.zeros_like(top), torch.zeros_like(top)
    if mask.sinks is not None:
        top, total = mask.sinks.to(w)[None, :, None, None].expand_as(top), torch.ones_like(top)
    queries: Tensor | None = None  # [G R·T K]; torch.einsum would arrange it anew for every page
    for (k, v), k_at in segment.paged.blocks():
        groups, rows = k.shape[1], k_at.shape[1]
        if queries is None:
            queries = (q[0] * scale).unflatten(1, (groups, -1)).permute(1, 2, 0, 3).flatten(1, 2)
        scores = torch.bmm(queries, k.permute(1, 2, 0)).view(1, q.shape[2], q.shape[1], rows).to(w)
        allowed, bias = mask.materialize(segment.q_at, k_at)
        scores = (scores if bias is None else scores + bias.to(w)).masked_fill(~allowed, float("-inf"))
        peak = torch.maximum(top, scores.amax(-1, keepdim=True))
        safe = peak.masked_fill(peak == float("-inf"), 0.0)
        shrink, e = (top - safe).exp(), (scores - safe).exp()
        total = total * shrink + e.sum(-1, keepdim=True)
        z = z * shrink + torch.bmm(e.reshape(groups, -1, rows), v.to(w).transpose(0, 1)).view(*e.shape[:3], v.shape[2])
        top = peak
    return (z / total.clamp(min=torch.finfo(w).tiny)).to(q.dtype).transpose(1, 2)


def pattern_terms(
    q: Tensor, kv_cache: KVCache, mask: Mask, scale: float, read: Callable[[Segment], tuple[Tensor, ...]] = lambda p: p.read()
) -> Callable[[Index], Terms]:
    """Return a function from a cell of z to its terms, pattern times v over S.

    It computes the pattern of that cell's row from q and the cache, since a kernel keeps none. read: a segment's keys and values.
    """

    def terms(i: Index) -> Terms:
        b, t, h, w = i
        segment = next(p for p in kv_cache.segments if t in range(q.shape[1])[p.rows])
        own = mask.of(segment)
        j, (k, v) = t - range(q.shape[1])[segment.rows].start, read(segment)
        g = h // (q.shape[2] // k.shape[2])
        allowed, bias = own.materialize(segment.q_at, segment.k_at)
        s = (k[b, :, g].double() @ q[b, t, h].double()) * scale
        s = s if mask.cap is None else mask.cap * torch.tanh(s / mask.cap)
        full = (k.shape[0], q.shape[2], segment.q_at.shape[1], k.shape[1])
        s = s if bias is None else s + bias.expand(full)[b, h, j].double()
        present = own.present(segment.q_at, segment.k_at, allowed)
        s = own.hide(s, *(table.expand(full)[b, h, j] for table in (allowed, present)))
        s = s if mask.sinks is None else torch.cat([s, mask.sinks[h, None].double()])
        return Terms(pattern=s.softmax(0).nan_to_num(0.0)[: k.shape[1]], v=v[b, :, g, w])

    return terms
