"""The Triton kernels beside their torch twins: on a GPU where there is one, otherwise by Triton's interpreter."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid.batch.kv_cache import KVCache, PagedRows
from pellucid.batch.mask import Mask, causal, window
from pellucid.ops.attend import attend_rows
from pellucid.ops.experts import grouped_reference
from pellucid.ops.gate import ACTS, gate
from pellucid.ops.norm import by_row, layer, layer_offset, rms_offset
from pellucid.ops.rotate import rotate
from tiny import swapped

CUDA = torch.cuda.is_available()
tl = pytest.importorskip("triton.language", reason="Triton is not installed, so its kernels are not tested here")

from pellucid.ops.gpu import expert_choice, gpu_twins, kernels, merging  # noqa: E402

DEVICE = "cuda" if CUDA else "cpu"
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def near(got: Tensor, want: Tensor) -> bool:
    """True if got equals a float64 result to the rounding of got's dtype, twice: once inside, once at the end."""
    eps = {torch.float32: 3e-6, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}[got.dtype]
    return bool(got.isfinite().all()) and float((got.double() - want).norm() / want.norm()) < eps


def products(dtype: torch.dtype) -> list[bool]:
    out = []
    for rows, inner, outer, biased in [(1, 64, 48, False), (1, 100, 37, True), (2, 130, 20, False), (4, 64, 33, True)]:
        x, w = drawn(1, rows, inner, dtype=dtype), drawn(outer, inner, dtype=dtype, seed=1)
        b = drawn(outer, dtype=dtype, seed=2) if biased else None
        want = F.linear(x.double(), w.double(), None if b is None else b.double())
        wide = gpu_twins.linear(x, w, b, widely=True)
        out += [near(gpu_twins.linear(x, w, b), want), wide.dtype is torch.float32 and near(wide, want)]
    return out


def norms(dtype: torch.dtype) -> list[bool]:
    x, w, b = drawn(1, 5, 3, 40, dtype=dtype), drawn(40, dtype=dtype, seed=1), drawn(40, dtype=dtype, seed=2)
    big, groups = x.double(), drawn(3, 40, dtype=dtype, seed=3)
    return [
        near(gpu_twins.norm(x, w, None, 1e-5, centred=False), by_row(big, w.double(), 1e-5)),
        near(gpu_twins.norm(x, None, None, 1e-5, centred=False), by_row(big, None, 1e-5)),
        near(gpu_twins.norm(x, groups, None, 1e-5, centred=False), by_row(big, groups.double(), 1e-5)),
        near(gpu_twins.norm(x, w, None, 1e-5, centred=False, offset=True), rms_offset(big, w.double(), 1e-5)),
        near(gpu_twins.norm(x, w, b, 1e-5, centred=True), layer(big, w.double(), b.double(), 1e-5)),
        near(gpu_twins.norm(x, None, None, 1e-5, centred=True), layer(big, None, None, 1e-5)),
        near(gpu_twins.norm(x, w, b, 1e-5, centred=True, offset=True), layer_offset(big, w.double(), b.double(), 1e-5)),
    ]


def rotations(dtype: torch.dtype) -> list[bool]:
    out = []
    for half, width, interleaved in [(8, 16, False), (8, 16, True), (6, 20, False), (6, 20, True)]:
        x = drawn(1, 4, 3, width, dtype=dtype)
        angle = drawn(1, 4, 1, half, seed=1)
        turn = angle.cos().to(dtype), angle.sin().to(dtype)
        want = rotate(x.double(), (turn[0].double(), turn[1].double()), interleaved)
        out.append(near(gpu_twins.rotate(x, *turn, interleaved), want))
    return out


def elementwise(dtype: torch.dtype) -> list[bool]:
    g, up = drawn(1, 3, 700, dtype=dtype), drawn(1, 3, 700, dtype=dtype, seed=1)
    out = [near(gpu_twins.add(g, up), g.double() + up.double())]
    for act in gpu_twins.ACTS:
        out += [near(gpu_twins.gate(g, up, act), gate(g.double(), up.double(), act))]
        out += [near(gpu_twins.gate(g, None, act), gate(g.double(), None, act))]
    return out


def mixtures(dtype: torch.dtype) -> list[bool]:
    rows, weight, bias = drawn(9, 24, dtype=dtype), drawn(5, 16, 24, dtype=dtype, seed=1), drawn(5, 16, dtype=dtype, seed=2)
    ends = torch.tensor([2, 2, 5, 9, 9], dtype=torch.int32, device=DEVICE)
    plain = grouped_reference(rows.double(), weight.double(), ends)
    ranks = drawn(1, 5, 12, dtype=dtype, seed=4)
    chosen = expert_choice.best(ranks, 3)
    affinity = ranks.softmax(-1)
    share = affinity.double().gather(-1, chosen)
    order, token, sorted_ends = expert_choice.sort(chosen, 12)
    want = chosen.flatten().argsort(stable=True)
    y, like = drawn(15, 40, dtype=dtype, seed=5), drawn(1, 5, 40, dtype=dtype)
    scattered = torch.empty_like(y, dtype=torch.float64).index_copy(0, order, y.double()).view(1, 5, 3, 40)
    weights = expert_choice.shares(affinity, chosen, True, 2.0, 1e-20)
    return [
        near(expert_choice.experts(rows, weight, ends, None), plain),
        near(expert_choice.experts(rows, weight, ends, bias), grouped_reference(rows.double(), weight.double(), ends, bias.double())),
        torch.equal(ranks.gather(-1, chosen), ranks.topk(3, -1)[0]),
        near(weights, share / share.sum(-1, keepdim=True) * 2.0),
        near(expert_choice.shares(affinity, chosen, False, 1.0, 0.0), share),
        torch.equal(order, want) and torch.equal(token, want // 3),
        torch.equal(sorted_ends, torch.searchsorted(chosen.flatten()[want], torch.arange(12, device=DEVICE), right=True).int()),
        near(expert_choice.combine(y, weights, order, like, False), (scattered * weights[..., None].double()).sum(2)),
        near(expert_choice.combine(y, weights, order, like, True), scattered.sum(2)),
    ]


def paged(dtype: torch.dtype, groups: int, width: int, lengths: list[int], size: int = 4) -> PagedRows:
    """Return rows of texts of these lengths in pages drawn without order; what lies in no text is NaN."""
    pages = -(-max(lengths) // size)
    order = torch.randperm(pages * len(lengths), generator=torch.Generator().manual_seed(3)).view(len(lengths), pages)
    pools = tuple(torch.full((order.numel() * size, groups, width), float("nan"), dtype=dtype) for _ in range(2))
    for seed, pool in enumerate(pools):
        for table, n in zip(order, lengths, strict=True):
            at = torch.arange(n)
            pool[table[at // size] * size + at % size] = drawn(n, groups, width, dtype=dtype, seed=seed).to("cpu", dtype)
    positions = torch.tensor([[n - 1 for n in lengths]])
    return PagedRows(tuple(p.to(DEVICE) for p in pools), order.to(DEVICE), size, positions.to(DEVICE))


def attention(dtype: torch.dtype) -> list[bool]:
    out = []
    for heads, groups, width, mask in [
        (4, 2, 16, causal), (6, 1, 24, causal), (4, 4, 16, causal & window(5)),
        (4, 2, 16, replace(causal, cap=3.0)), (4, 2, 16, replace(causal, sinks=drawn(4, dtype=dtype, seed=7))),
    ]:  # fmt: skip
        a = paged(dtype, groups, width, [3, 130, 17])
        q = drawn(1, 3, heads, width, dtype=dtype, seed=5)
        out.append(near(gpu_twins.attend(q, a, width**-0.5, mask), attended(q, a, mask, width**-0.5)))
    return out


def attended(q: Tensor, a: PagedRows, mask: Mask, scale: float) -> Tensor:
    """Attend by the rows of each text alone, in float64."""
    out = []
    for r, table in enumerate(a.tables):
        at = torch.arange(int(a.positions[0, r]) + 1, device=DEVICE)
        k, v = (pool[table[at // a.size] * a.size + at % a.size].double() for pool in a.pools)
        each = q.shape[2] // k.shape[1]
        k, v = k.repeat_interleave(each, 1), v.repeat_interleave(each, 1)
        s = torch.einsum("hk,shk->hs", q[0, r].double(), k) * scale
        s = s if mask.cap is None else mask.cap * torch.tanh(s / mask.cap)
        s = s.masked_fill(~mask.allowed(at[-1], at), float("-inf"))
        if mask.sinks is not None:
            s = torch.cat([s, mask.sinks.double()[:, None]], 1)
        out.append(torch.einsum("hs,shw->hw", s.softmax(-1)[:, : len(at)], v))
    return torch.stack(out)[None]


def stored(dtype: torch.dtype) -> list[bool]:
    a = paged(dtype, 2, 8, [3, 9, 5])
    new = drawn(1, 3, 2, 8, dtype=dtype, seed=8), drawn(1, 3, 2, 8, dtype=dtype, seed=9)
    want = [pool.clone() for pool in a.pools]
    slots = [int(t[int(p) // a.size]) * a.size + int(p) % a.size for t, p in zip(a.tables, a.positions[0], strict=True)]
    for pool, n in zip(want, new, strict=True):
        pool[slots] = n[0]
    gpu_twins.store(new, a.pools, a.tables, a.positions, a.size)
    return [torch.equal(x.nan_to_num(7.0), y.nan_to_num(7.0)) for x, y in zip(a.pools, want, strict=True)]


def merged(dtype: torch.dtype) -> list[bool]:
    """Launches that are joined write every tensor, with the numbers of launches one by one."""
    x, w = drawn(1, 2, 64, dtype=dtype), [drawn(n, 64, dtype=dtype, seed=n) for n in (48, 32, 32, 16)]
    a, size = paged(dtype, 2, 16, [3, 9]), 4
    angle = drawn(1, 2, 1, 8, seed=1)
    turn, gain = (angle.cos().to(dtype), angle.sin().to(dtype)), drawn(64, dtype=dtype, seed=3)

    def step() -> list[Tensor]:
        pools = [p.clone() for p in a.pools]
        q, k, v = (gpu_twins.linear(x, m, None) for m in w[:3])
        heads = [t.unflatten(-1, (-1, 16)) for t in (q, k, v)]
        rotated = [gpu_twins.rotate(t, *turn, False) for t in heads[:2]]
        gpu_twins.store((rotated[1], heads[2]), pools, a.tables, a.positions, size)
        total = gpu_twins.add(x, x)
        even = gpu_twins.norm(total, gain, None, 1e-5, centred=False)
        g, up = (gpu_twins.linear(even, m, None) for m in w[1:3])
        return [q, k, v, *rotated, *pools, total, even, g, up, gpu_twins.gate(g, up, "silu"), gpu_twins.linear(even, w[3], None)]

    alone, counted, real = step(), list[tuple[str, ...]](), dict(merging.launches)
    with pytest.MonkeyPatch.context() as patch:
        for names, launch in real.items():
            patch.setitem(merging.launches, names, lambda *calls, names=names, launch=launch: (counted.append(names), launch(*calls)))
        with merging.merging():
            together = step()
    want = [("linear",) * 3, ("rotate", "rotate", "store"), ("add", "norm"), ("linear", "linear", "gate"), ("linear",)]
    return [counted == want, *(near(m.nan_to_num(0.0), o.nan_to_num(0.0).double()) for m, o in zip(together, alone, strict=True))]


LAWS: dict[str, Callable[[torch.dtype], list[bool]]] = {
    "products": products, "norms": norms, "rotations": rotations, "elementwise": elementwise, "mixtures": mixtures,
    "attention": attention, "stored": stored, "merged": merged,
}  # fmt: skip


@pytest.mark.quick(5)
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_kernels_equal_their_twins(law: str, dtype: torch.dtype) -> None:
    if law == "attention" and dtype is torch.bfloat16 and not CUDA:
        pytest.skip("Triton's interpreter multiplies the bits of bfloat16 numbers, not the numbers: judged on a GPU alone")
    assert all(LAWS[law](dtype)), LAWS[law](dtype)


def test_gathered_rows_attend_alike() -> None:
    """Where no kernel fits, the gathered pages give the same attention. On a CPU the handle is set by hand."""
    a = paged(torch.float64, 2, 16, [3, 30, 17])
    q = drawn(1, 3, 4, 16, dtype=torch.float64, seed=5)
    with swapped(Tensor, "is_cpu", property(lambda self: False)):
        got = attend_rows(q, KVCache([], (), replace(a, pools=tuple(p.nan_to_num(0.0) for p in a.pools))), causal & window(7), 0.25)
    assert got is not None and (got - attended(q, a, causal & window(7), 0.25)).abs().max() < 1e-12


def test_triton_knew_how_to_run_when_it_was_imported() -> None:
    """Its own functions are made then, and those of a compiler cannot be called by its interpreter."""
    assert (type(tl.sum).__name__ == "InterpretedFunction") is not CUDA


def test_mutants() -> None:
    """A gate without rounding rules, a wrong angle, a key beyond the position: each law fails for a kernel of another function."""
    dtype = torch.float32
    with swapped(gpu_twins, "add", lambda x, y: x - y):
        assert not all(elementwise(dtype))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ACTS, "silu", F.relu)
        assert not all(elementwise(dtype))
    real = gpu_twins.attend
    with swapped(gpu_twins, "attend", lambda q, a, scale, mask: real(q, replace(a, positions=(a.positions - 1).clamp(min=0)), scale, mask)):
        assert not all(attention(dtype))
    experts = expert_choice.experts
    with swapped(expert_choice, "experts", lambda rows, weight, ends, bias: experts(rows, weight, ends - 1, bias)):
        assert not all(mixtures(dtype))
    with swapped(merging, "joins", lambda waiting, name, call: False):
        assert not all(merged(dtype))
    assert kernels.product is not kernels.gated_product
