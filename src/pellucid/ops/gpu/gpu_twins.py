"""The kernels as functions of tensors, each with the condition under which it serves. Shapes are those of the ops."""

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pellucid.batch.mask import Band, Mask
from pellucid.ops.gpu.launch import fits, how, power, processors
from pellucid.ops.gpu.merging import flush, launches, submit
from pellucid.ops.precision import wide

if TYPE_CHECKING:
    from pellucid.batch.kv_cache import PagedRows

ROWS = 1, 2, 4  # that `linear` multiplies: of more rows torch's libraries take the matrix units
ACTS = "silu", "gelu", "gelu_tanh", "relu", "relu2"
AHEAD = 4  # lines of each row of a weight that a program asks for early: 0 took 1% longer, 32 took 10% longer
WIDEST = 16384  # numbers of a row that one program norms
PARTS = 64  # at most, of a row's keys


def kernels() -> ModuleType:
    """Return the module of kernels; importing it needs Triton."""
    from pellucid.ops.gpu import kernels

    return kernels


def shape_of(outer: int, inner: int, rows: int) -> tuple[int, int, int]:
    """Return the outputs of a program, its inputs at a time, and its warps: measured on an H200, see benchmarks/gpu.py --tune."""
    return (4, min(1024, power(inner)), 4) if rows == 1 else (2, min(512, power(inner)), 4)


def fits_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """True if `linear` takes x [... in] and weight [out in]."""
    return weight.dim() == 2 and fits(x, weight, bias) and x.numel() // x.shape[-1] in ROWS


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, widely: bool = False) -> Tensor:
    """Multiply x [... in] by weight [out in] and add bias. widely: into float32."""
    y = x.new_empty((*x.shape[:-1], len(weight)), dtype=wide(x.dtype) if widely else x.dtype)
    submit("linear", x, weight, bias, y)
    return y


def products(x: Tensor, *each: tuple[Tensor, Tensor | None, Tensor]) -> None:
    """Multiply x by up to three weights: (weight, bias, output) of each."""
    inner = x.shape[-1]
    rows, outers = x.numel() // inner, [len(weight) for weight, *_ in each]
    out, step, warps = shape_of(sum(outers), inner, rows)
    full = [*each, *[each[0]] * (3 - len(each))]  # of a weight that is not there no output is computed
    arguments = [part for own, outer in zip(full, [*outers, 0, 0], strict=False) for part in (*own, outer)]
    kernels().product[(sum(-(-n // out) for n in outers),)](
        x, *arguments, inner, rows, each[0][1] is not None, out, step, AHEAD, **how(x, warps)
    )


def gated_products(x: Tensor, weight: Tensor, weight_2: Tensor, g: Tensor, up: Tensor, y: Tensor, act: str) -> None:
    """Multiply x by two weights, and act on the first product times the second."""
    outer, inner = weight.shape
    rows = x.numel() // inner
    out, step, warps = shape_of(2 * outer, inner, rows)
    kernels().gated_product[(-(-outer // out),)](x, weight, weight_2, g, up, y, outer, inner, act, rows, out, step, AHEAD, **how(x, warps))


def fits_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None = None) -> bool:
    """True if `norm` takes x [... D]."""
    return fits(x, weight, bias) and x.shape[-1] <= WIDEST


def norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, centred: bool, offset: bool = False) -> Tensor:
    """Divide each row of x [... D] by its root mean square, or `centred` by its deviation; times weight, or 1 + weight, plus bias.

    A weight of several rows [P D] is taken in turn.
    """
    y = torch.empty_like(x)
    submit("norm", x, weight, bias, y, eps, centred, offset)
    return y


def norms(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, y: Tensor, eps: float, centred: bool, offset: bool,
    added: Tensor | None = None, z: Tensor | None = None,
) -> None:  # fmt: skip
    """Norm the rows of x, or of the sum z of x and `added`."""
    width, block = x.shape[-1], power(x.shape[-1])
    period = 1 if weight is None else weight.numel() // width
    kernels().norm[(x.numel() // width,)](
        x, added, z, weight, bias, y, width, eps, period, z is not None, centred, offset, weight is not None, bias is not None, block,
        **how(x, 8 if block >= 4096 else 4 if block >= 512 else 1),
    )  # fmt: skip


def fits_rotate(x: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """True if `rotate` takes x [B T H K] and the angles [B T 1 R/2]."""
    return fits(x, cos, sin) and x.dim() == 4 and cos.numel() // cos.shape[-1] == x.shape[0] * x.shape[1]


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Turn the pairs of the first R channels of x [B T H K] by (cos, sin) [B T 1 R/2]."""
    y = torch.empty_like(x)
    submit("rotate", x, cos, sin, y, interleaved)
    return y


def rotations(x: Tensor, cos: Tensor, sin: Tensor, y: Tensor, interleaved: bool) -> None:
    """Turn the pairs of x."""
    _, _, heads, width = x.shape
    half = cos.shape[-1]
    rest = width - 2 * half
    kernels().rotate[(x.shape[0] * x.shape[1], heads)](
        x, cos, sin, y, heads, width, half, interleaved, power(half), power(rest) if rest else 0, **how(x, 1)
    )


def rotations_stored(
    of_q: tuple[Any, ...], of_k: tuple[Any, ...], v: Tensor, pools: Sequence[Tensor], tables: Tensor, positions: Tensor, size: int
) -> None:
    """Turn the pairs of q and k, each with what `rotations` takes, and store k and v."""
    q, cos, sin, q_rotated, interleaved = of_q
    k, *_, k_rotated, _ = of_k
    _, n, heads, width = q.shape
    groups, v_width, half = k.shape[2], v.shape[3], cos.shape[-1]
    rest = width - 2 * half
    kernels().rotate_and_store[(n, heads + groups)](
        q, k, v, cos, sin, q_rotated, k_rotated, *pools, tables, positions, tables.shape[1], size, heads, groups, width, half, v_width,
        interleaved, power(half), power(rest) if rest else 0, power(v_width), **how(q, 1),
    )  # fmt: skip


def fits_gate(g: Tensor, up: Tensor | None, act: str) -> bool:
    """True if `gate` computes this activation of these."""
    return act in ACTS and fits(g, up) and (up is None or up.shape == g.shape)


def gate(g: Tensor, up: Tensor | None, act: str) -> Tensor:
    """Compute act(g) · up, or act(g)."""
    y = torch.empty_like(g)
    submit("gate", g, up, y, act)
    return y


def gates(g: Tensor, up: Tensor | None, y: Tensor, act: str) -> None:
    """Act on g, times up."""
    kernels().gate[(-(-g.numel() // 1024),)](g, up, y, g.numel(), act, up is not None, 1024, **how(g))


def fits_add(x: Tensor, y: Tensor) -> bool:
    """True if `add` takes these."""
    return fits(x, y) and x.shape == y.shape


def add(x: Tensor, y: Tensor) -> Tensor:
    """Add x and y."""
    z = torch.empty_like(x)
    submit("add", x, y, z)
    return z


def sums(x: Tensor, y: Tensor, z: Tensor) -> None:
    """Add x and y to z."""
    kernels().add[(-(-x.numel() // 1024),)](x, y, z, x.numel(), 1024, **how(x))


def fits_store(new: Sequence[Tensor], pools: Sequence[Tensor], tables: Tensor) -> bool:
    """True if `store` takes these: a key and a value for each row."""
    return len(new) == 2 and fits(*new, *pools) and tables.is_cuda and max(n[0, 0].numel() for n in new) <= WIDEST


def store(new: Sequence[Tensor], pools: Sequence[Tensor], tables: Tensor, positions: Tensor, size: int) -> None:
    """Write row r of each of `new` [1 n ...] to the row of its pool where table r has its position [1 n]."""
    submit("store", *new, pools, tables, positions, size)


def stores(k: Tensor, v: Tensor, pools: Sequence[Tensor], tables: Tensor, positions: Tensor, size: int) -> None:
    """Write the rows of k and v to their places."""
    k_pool, v_pool = pools
    k_width, v_width = k[0, 0].numel(), v[0, 0].numel()
    kernels().store[(k.shape[1],)](
        k, v, k_pool, v_pool, tables, positions, tables.shape[1], size, k_width, v_width, power(k_width), power(v_width), **how(k)
    )


def fits_attend(q: Tensor, a: "PagedRows", mask: Mask) -> bool:
    """True if `attend` takes these: a causal mask, maybe with a window, a cap or sinks."""
    if not a.tables.is_cuda:
        return False
    rule = mask.allowed
    plain = isinstance(rule, Band) and rule.causal and not rule.until and rule.chunk is None and not rule.around
    free = mask.bias is None and mask.by_segment is None and mask.fill is None
    return plain and free and len(a.pools) == 2 and fits(q, *a.pools) and max(p.shape[2] for p in a.pools) <= 256


def attend(q: Tensor, a: "PagedRows", scale: float, mask: Mask) -> Tensor:
    """Attend from row r of q [1 n H K] to the keys of table r, up to its position. Returns z [1 n H W]."""
    flush()
    k, v = a.pools
    n, heads, groups, width = q.shape[1], q.shape[2], k.shape[1], v.shape[2]
    rule = mask.allowed
    assert isinstance(rule, Band)
    parts = power(min(PARTS, max(1, 2 * processors(q.device) // (n * groups)), max(1, a.tables.shape[1] * a.size // 64)))
    z = q.new_empty(n, heads, parts, width, dtype=wide(q.dtype))
    tops, sums = (q.new_empty(n, heads, parts, dtype=wide(q.dtype)) for _ in range(2))
    kernels().attend_part[(n, groups, parts)](
        q, k, v, a.tables, a.positions, z, tops, sums, a.tables.shape[1], a.size, rule.window or 0, scale, mask.cap or 0.0,
        heads, groups, q.shape[3], width,
        parts, rule.window is not None, mask.cap is not None, max(16, power(heads // groups)), max(16, power(q.shape[3])),
        max(16, power(width)), 64 if width <= 128 else 32, **how(q),
    )  # fmt: skip
    y = q.new_empty(1, n, heads, width)
    kernels().attend_join[(n * heads,)](
        z, tops, sums, mask.sinks, y, heads, width, parts, mask.sinks is not None, power(width), **how(q)
    )  # fmt: skip
    return y


launches |= {
    ("linear",): lambda a: products(a[0], a[1:]),
    ("linear", "linear"): lambda a, b: products(a[0], a[1:], b[1:]),
    ("linear", "linear", "linear"): lambda a, b, c: products(a[0], a[1:], b[1:], c[1:]),
    ("linear", "linear", "gate"): lambda a, b, c: gated_products(a[0], a[1], b[1], a[3], b[3], *c[2:]),
    ("norm",): lambda a: norms(*a),
    ("add",): lambda a: sums(*a),
    ("add", "norm"): lambda a, b: norms(a[0], *b[1:], *a[1:]),
    ("rotate",): lambda a: rotations(*a),
    ("rotate", "rotate", "store"): lambda a, b, c: rotations_stored(a, b, *c[1:]),
    ("gate",): lambda a: gates(*a),
    ("store",): lambda a: stores(*a),
}
