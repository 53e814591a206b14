"""Products of rows and weights, rows of tables, sums, scales.

Weights are [out in]. The terms of a product's cell are its row times the weight's row, and the bias.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid.config import Temper
from pellucid.ops import gpu, narrow_rows, native
from pellucid.ops.blocks import Blocks
from pellucid.ops.kinds import Operands, OpKind, plain, scaling
from pellucid.ops.precision import wide
from pellucid.watching.tap import note
from pellucid.watching.terms import Index, Terms


def row(m: Operands) -> str:
    """Write a row of a table: by id, by type, the first, or by position plus the rows that are skipped."""
    skip = m.setting("skip", 0)
    index = {"positions": "t", "types": "type", "tasks": "0"}.get(m.name, "id")
    return f"{m.weights[0]}[{index} + {skip}]" if skip else f"{m.weights[0]}[{index}]"


def growth(m: Operands) -> str:
    """Write the factor of `scale_by_position`."""
    place = "(t + 1)" if m.setting("first", 1) else "t"
    return f"1 + {plain(m.setting('scale', 'scale'))} · ln(1 + ⌊{place} / {m.setting('floor', 'floor')}⌋)"


BASE = "(gain − 1) · base"  # of DoRA with dropout
LINEAR = OpKind("linear", lambda m: f"{m.x} · {m.matrix}ᵀ{m.bias}", product=True, labels={"weight": lambda m: m.matrix}, result="product")
ADAPTED = OpKind(
    "adapted",
    lambda m: (
        f"{m.x} · {m.weights[0]}ᵀ{' · gain' if any(m.setting('gains', ())[:1]) else ''}{m.bias}{''.join(f' + {a}' for a in m.additions)}"
        + f" + {BASE}" * bool(m.setting("base"))
    ),
    labels={"gain": lambda m: "gain", "base": lambda m: BASE},
)
GAIN = OpKind("gain")
MERGED = OpKind("merged", product=True)
EMBEDDING = OpKind("look", row, product=True, labels={"weight": row}, result="embedding")
GATHER = OpKind("pick", lambda m: f"{m.x}[tₙ]", product=True)
DEQUANTISED = OpKind("dequantised")
IDENTITY = OpKind("identity", lambda m: m.x, product=True)
ADD = OpKind("add", lambda m: " + ".join(m.inputs), result="sum")
SCALED = OpKind("scaled", lambda m: m.x + scaling(m.setting("scale")))
MULTIPLIED = OpKind("multiplied", lambda m: f"{m.x} · {m.weights[0]}")
DROPPED = OpKind("dropped", lambda m: f"{m.x} · mask", labels={"mask": lambda m: "mask"})
TEMPERED = OpKind("tempered", lambda m: f"{m.x} · ({growth(m)})", labels={"growth": growth})


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply x [... in] by weight [out in], and add bias [out]. Returns [... out]. FLOPs: 2·rows·in·out."""
    return product(times(x, weight, bias), x, weight, bias, times)


def times(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply by the fastest twin that fits."""
    if native.fits_linear(x, weight, bias):
        return native.linear(x, weight, bias)
    if isinstance(weight, Blocks) and native.fits_linear_blocks(x, weight, bias):
        return native.linear_blocks(x, weight, bias)
    if gpu.fits_linear(x, weight, bias):
        return gpu.linear(x, weight, bias)
    if narrow_rows.fits(x, weight):
        return narrow_rows.linear(x, weight, bias)
    return F.linear(x, weight, bias)


def linear_wide(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply as `linear` does, into float32 at least: rounding the router's logits would change a choice of experts."""
    if native.fits_linear(x, weight, bias):
        return product(native.linear_wide(x, weight, bias), x, weight, bias, linear_wide)
    if gpu.fits_linear(x, weight, bias):
        return product(gpu.linear(x, weight, bias, widely=True), x, weight, bias, linear_wide)
    w = wide(x.dtype)
    return product(F.linear(x.to(w), weight.to(w), None if bias is None else bias.to(w)), x, weight, bias, linear_wide)


def product(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, by: Callable[..., Tensor]) -> Tensor:
    """Note that y is x times weight plus bias, computed by the function `by`. Returns y."""

    def terms(i: Index) -> Terms:
        return Terms(x=x[i[:-1]], weight=weight[i[-1]]).plus(bias=None if bias is None else bias[i[-1]])

    return note(y, LINEAR.name, (x,), (weight, bias), terms, 2 * y.numel() * weight.shape[1], again=partial(by, x))


class Added(NamedTuple):
    """What an adapter adds to x Wᵀ + b. low [... out]: (x Aᵀ) Bᵀ, which `scale` multiplies.

    gain [out]: of DoRA.  base [... out]: x Wᵀ of what dropout leaves of x, where a gain meets dropout.
    """

    low: Tensor
    scale: float
    gain: Tensor | None = None
    base: Tensor | None = None


def adapted(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, added: Sequence[Added]) -> Tensor:
    """Add the adapters' outputs to y = x Wᵀ + b [... out], one after the other.

    A gain multiplies all but b that is there behind its adapter. With dropout it multiplies only what is left of x, as in PEFT:
    y + (gain − 1)·base + gain·scale·low.
    """
    own, *each = gained([one.gain if one.base is None else None for one in added])
    z = y if own is None else y * own if bias is None else y * own + bias * (1 - own)
    bases = []
    for n, (one, g) in enumerate(zip(added, each, strict=True)):
        if one.base is not None and one.gain is not None:
            bases.append((one.base, one.gain - 1 if g is None else (one.gain - 1) * g))
            z = z + one.base * bases[-1][1]
            each[n] = g = one.gain if g is None else one.gain * g
        low = one.low if g is None else one.low * g
        z = native.add(z, native.scaled(low, one.scale)) if native.fits_add(z, low) else z + low * one.scale

    def terms(i: Index) -> Terms:
        first, *numbers = [1.0 if g is None else float(g[i[-1]]) for g in (own, *each)]
        more = {f"addition {n}": a.low[i].double() * a.scale * g for n, (a, g) in enumerate(zip(added, numbers, strict=True))}
        if bases:
            more["base"] = torch.stack([base[i].double() * g[i[-1]].double() for base, g in bases]).sum()
        factors = {"x": x[i[:-1]], "weight": weight[i[-1]]} | ({} if own is None else {"gain": first})
        return Terms(**factors).plus(bias=None if bias is None else bias[i[-1]], **more)

    def again(weight: Tensor, bias: Tensor | None, *gains: Tensor | None) -> Tensor:
        changed = [one._replace(gain=g) for one, g in zip(added, gains, strict=True)]
        return adapted(times(x, weight, bias), x, weight, bias, changed)

    def settings() -> dict[str, object]:
        return scales_and_gains([one.scale for one in added], [own, *each]) | ({"base": True} if bases else {})

    inputs, weights = (x, *(one.low for one in added)), (weight, bias, *(one.gain for one in added))
    return note(z, ADAPTED.name, inputs + tuple(base for base, _ in bases), weights, terms, 0, settings, again)


def gain(magnitude: Tensor, weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Return magnitude [out] over the lengths of the rows of W + scale·b·a [out in] (DoRA, arXiv 2402.09353). FLOPs: 2·out·L·in.

    Gradients take the lengths for constants, as the paper's section 4.3 does.
    """
    with torch.no_grad():
        w = wide(magnitude.dtype)
        length: Tensor = torch.addmm(weight.to(w), b.to(w), a.to(w), alpha=scale).norm(dim=1)

    def again(magnitude: Tensor) -> Tensor:
        return (magnitude.to(w) / length).to(magnitude.dtype)

    return note(again(magnitude), GAIN.name, (), (magnitude,), None, 2 * weight.numel() * a.shape[0], again=again)


def gained(gains: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return what multiplies a matrix, and then each addition to it: its adapter's gain and those behind it. None where there is none."""
    out: list[Tensor | None] = [None]
    for g in reversed(gains):
        out.append(out[-1] if g is None else g if out[-1] is None else g * out[-1])
    return [out[-1], *out[:0:-1]]


def scales_and_gains(scales: Sequence[float], gains: Sequence[Tensor | None]) -> dict[str, object]:
    """Return what a record keeps of adapters: their scales, and whether gains multiply the matrix, and each addition, if any do."""
    which = [g is not None for g in gains]
    return {"scales": [*scales]} | ({"gains": which} if any(which) else {})


def merged(weight: Tensor, low: Sequence[tuple[Tensor, Tensor, float, Tensor | None]]) -> Tensor:
    """Add scale·b·a of each low-rank pair (a [L in], b [out L], scale, gain [out]) to weight [out in]. FLOPs: 2·out·L·in each.

    Gains multiply rows, as in `adapted`.
    """
    w, (own, *each) = wide(weight.dtype), gained([g for *_, g in low])
    total = weight.to(w) if own is None else weight.to(w) * own.to(w)[:, None]
    for (a, b, scale, _), g in zip(low, each, strict=True):
        b = b.to(w) if g is None else b.to(w) * g.to(w)[:, None]
        total = total + scale * (b @ a.to(w))
    flops = sum(2 * b.numel() * a.shape[1] for a, b, *_ in low)

    def again(weight: Tensor, *pairs: Tensor) -> Tensor:
        return merged(weight, [(a, b, s, g) for a, b, (*_, s, g) in zip(pairs[::2], pairs[1::2], low, strict=True)])

    def settings() -> dict[str, object]:
        return scales_and_gains([s for *_, s, _ in low], [own, *each])

    weights = (weight, *(p for a, b, *_ in low for p in (a, b)))
    return note(total.to(weight.dtype), MERGED.name, (), weights, None, flops, settings, again)


def embedding(ids: Tensor, table: Tensor, skip: int = 0) -> Tensor:
    """Look up the rows of table [rows width] at ids [...] + skip. Returns [... width]."""
    y = rows(ids, table, skip)

    def terms(i: Index) -> Terms:
        return Terms(weight=table[ids[i[:-1]] + skip, i[-1]])

    return note(y, EMBEDDING.name, (), (table,), terms, settings=lambda: {"skip": skip}, again=lambda table: rows(ids, table, skip))


def rows(ids: Tensor, table: Tensor, skip: int) -> Tensor:
    """Look up rows by the fastest twin that fits."""
    if native.fits_embedding(ids, table):
        return native.embedding(ids, table, skip)
    ids = ids + skip if skip else ids
    if isinstance(table, Blocks) and native.fits_embedding_blocks(ids, table):
        return native.embedding_blocks(ids, table)
    return F.embedding(ids, table)


def picked(x: Tensor, at: Tensor) -> Tensor:
    """Return rows `at` [N] of x [B T D]: [B N D]."""
    if x.shape[0] == 1 and native.fits_embedding(at, x[0]):
        return native.embedding(at, x[0])[None]
    return x[:, at]


def dense_weight(weight: Tensor) -> Tensor:
    """Return a weight [out in] dequantised, for an op that cannot read blocks; any other weight as it is."""
    return note(weight.plain(), DEQUANTISED.name, (), (weight,)) if isinstance(weight, Blocks) else weight


def identity(x: Tensor) -> Tensor:
    """Copy x: where a part is left out, its output is a tensor of its own, since a watch tells tensors apart by their memory."""
    y = native.scaled(x, 1.0) if native.fits_each(x) else x.clone()
    return note(y, IDENTITY.name, (x,), (), lambda i: Terms(x=x[i]))


def add(x: Tensor, y: Tensor) -> Tensor:
    """Add x and y, of one shape."""
    z = native.add(x, y) if native.fits_add(x, y) else gpu.add(x, y) if gpu.fits_add(x, y) else x + y
    return note(z, ADD.name, (x, y), (), lambda i: Terms().plus(x=x[i], y=y[i]))


def scaled(x: Tensor, factor: float) -> Tensor:
    """Multiply x by a number of the configuration."""
    y = native.scaled(x, factor) if native.fits_each(x) else (x * factor).to(x.dtype)
    return note(y, SCALED.name, (x,), (), lambda i: Terms(x=x[i], scale=factor), settings=lambda: {"scale": factor})


def multiplied(x: Tensor, factor: Tensor) -> Tensor:
    """Multiply x [B T D] by a stored number, factor [1]."""
    y = native.multiplied(x, factor) if native.fits_each(x) else x * factor.to(x.dtype)
    return note(y, MULTIPLIED.name, (x,), (factor,), lambda i: Terms(x=x[i], weight=factor[0]), again=lambda factor: x * factor.to(x.dtype))


def dropped(x: Tensor, mask: Tensor) -> Tensor:
    """Multiply x by a mask of its shape: 0, or the inverse of the share that stays (arXiv 1207.0580)."""
    return note(x * mask, DROPPED.name, (x,), (), lambda i: Terms(x=x[i], mask=mask[i]))


def scale_by_position(x: Tensor, places: Tensor, spec: Temper) -> Tensor:
    """Multiply queries [B T H K] by 1 + scale · ln(1 + ⌊(t + first) / floor⌋), t of places [B T]."""

    def growth() -> Tensor:
        return 1 + spec.scale * ((places + spec.first) // spec.floor).to(wide(x.dtype)).log1p()[..., None, None]

    if native.fits_scale_by_position(x, places):
        y = native.scale_by_position(x, places, spec.first, spec.floor, spec.scale)
    else:
        y = (x * growth()).to(x.dtype)

    def terms(i: Index) -> Terms:
        return Terms(x=x[i], growth=growth().expand(x.shape)[i]).of(t=places.expand(x.shape[:2])[i[:2]])

    return note(y, TEMPERED.name, (x,), (), terms, settings=lambda: {"floor": spec.floor, "scale": spec.scale, "first": spec.first})


def gather(x: Tensor, token: Tensor) -> Tensor:
    """Copy the rows of x [B T D], flattened, at token [N]. Returns [N D]."""
    rows = x.flatten(0, 1)
    y = native.embedding(token, rows) if native.fits_sort(token, x) else rows[token]
    return note(y, GATHER.name, (x,), (), lambda i: Terms(x=x.flatten(0, 1)[token[i[0]], i[1]]))
