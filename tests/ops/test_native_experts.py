"""The kernels of a mixture of experts against torch: the choice, the order of rows, the chosen products, and the combination."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pellucid import config as c
from pellucid import ops
from pellucid.ops import native
from pellucid.ops.experts import grouped_reference
from test_native import DTYPES, near, no_worse, rand
from test_native_rows import kernels

pytestmark = pytest.mark.skipif(not native.available(), reason="no kernels here")


def spec(E: int = 12, A: int = 3, groups: int = 1, groups_chosen: int = 1, few: int = 2, **more: Any) -> c.Moe:
    return c.Moe(E, A, 8, groups=groups, groups_chosen=groups_chosen, group_best=few, **more)


def both(f: Callable[[], Any]) -> tuple[Any, Any]:
    """Return the result with kernels, and through torch."""
    with native.off():
        theirs = f()
    return f(), theirs


def test_scores() -> None:
    for E in (1, 5, 16, 60, 256):
        x, by = rand(1, 7, E, dtype=torch.float32, scale=4), rand(E, dtype=torch.float32, seed=1)
        got, want = both(lambda x=x: ops.softmax(x))
        assert (
            near(got, x.double().softmax(-1))
            and near(got.sum(-1), torch.ones(1, 7).double())
            and no_worse(got, want, x.double().softmax(-1))
        )
        got, want = both(lambda x=x: ops.sigmoid(x))
        assert no_worse(got, want, x.double().sigmoid())
        assert torch.equal(*both(lambda x=x, by=by: ops.corrected(x, by)))


def choices() -> None:
    for s in (spec(), spec(12, 12), spec(16, 4, 4, 2, 2), spec(16, 5, 8, 3, 1), spec(256, 8, 8, 4, 2)):
        for rows in (1, 5, 16):
            x = rand(1, rows, s.experts, dtype=torch.float32, seed=rows)
            got, want = both(lambda x=x, s=s: ops.best(x, s))
            assert torch.equal(got, want), s


def test_choices() -> None:
    choices()


def test_choices_at_the_ends() -> None:
    """Of equal scores the lower expert is chosen, NaN before all numbers, and the indices are always valid."""
    ones = torch.ones(1, 2, 8)
    assert ops.best(ones, spec(8, 3)).tolist() == [[[0, 1, 2]] * 2]
    assert ops.best(ones, spec(8, 3, 4, 2)).tolist() == [[[0, 1, 2]] * 2]
    x = torch.tensor([[[1.0, math.nan, math.inf, -math.inf, 2.0, math.nan]]])
    assert ops.best(x, spec(6, 6)).tolist() == [[[1, 5, 2, 4, 0, 3]]]
    none = torch.full((1, 1, 8), -math.inf)
    assert sorted(ops.best(none, spec(8, 4, 4, 2)).flatten().tolist()) == [0, 1, 2, 3]


def test_shares_of_a_sparse_mixer() -> None:
    """By the formula: of each choice and those near it, without better choices. Logits below and above 0, all near, none near."""
    for E, shift, near_by in ((5, 0.0, 0.6), (16, 3.0, 0.02), (16, -3.0, 0.4), (16, 0.0, 1e9), (3, 1.0, 0.0)):
        x = rand(1, 7, E, dtype=torch.float32, scale=2, seed=E) + shift
        chosen = ops.best(x, spec(E, 2))
        got, want = both(lambda x=x, chosen=chosen, near_by=near_by: ops.mixed(x, chosen, near_by))
        exact = ops.mixed(x.double(), chosen, near_by)
        assert no_worse(got, want, exact) and (got <= 1).all()
        if near_by == 1e9:
            assert near(got[..., :1], x.double().softmax(-1).amax(-1, keepdim=True))
        if near_by == 0.0:
            assert torch.equal(got, torch.ones_like(got))


@pytest.mark.parametrize("normalised", [True, False])
def test_shares(normalised: bool) -> None:
    s = spec(12, 4, normalised=normalised, scale=2.5)
    x = rand(1, 6, 12, dtype=torch.float32).sigmoid()
    chosen = ops.best(x, s)
    got, want = both(lambda: ops.shares(x, chosen, s))
    assert near(got, want.double())
    assert not normalised or near(got.sum(-1), torch.full((1, 6), 2.5).double())


def sorting() -> None:
    for E, A, rows in ((4, 1, 1), (8, 3, 7), (64, 8, 16)):
        chosen = torch.stack([torch.randperm(E, generator=torch.Generator().manual_seed(r))[:A] for r in range(rows)])[None]
        got, want = both(lambda chosen=chosen, E=E, rows=rows: ops.sort(chosen, E, torch.zeros(1, rows, 4)))
        assert all(torch.equal(a, b) and a.dtype is b.dtype for a, b in zip(got, want, strict=True))


def test_sorting() -> None:
    sorting()


def routed(dtype: torch.dtype, E: int, A: int, rows: int, k: int, n: int) -> tuple[Tensor, ...]:
    chosen = torch.stack([torch.randperm(E, generator=torch.Generator().manual_seed(r))[:A] for r in range(rows)])[None]
    x = rand(1, rows, k, dtype=dtype)
    order, token, ends = ops.sort(chosen, E, x)
    return x, order, token, ends, rand(E, n, k, dtype=dtype, seed=1), rand(E, n, dtype=dtype, seed=2)


def products(dtype: torch.dtype) -> None:
    for E, A, rows, k, n in ((4, 2, 1, 33, 9), (8, 3, 16, 64, 100), (3, 3, 5, 17, 300), (32, 2, 7, 128, 24)):
        x, _, token, ends, w, b = routed(dtype, E, A, rows, k, n)
        picked = ops.gather(x, token)
        assert torch.equal(picked, x[0][token])
        for bias in (b, None):
            got = ops.grouped(picked, w, ends, bias)
            want = grouped_reference(picked.double(), w.double(), ends, None if bias is None else bias.double())
            assert near(got, want, 2) and no_worse(got, grouped_reference(picked, w, ends, bias), want)
        got = ops.grouped(picked, w, ends, b)
        for j in range(len(token)):  # each row is that expert's plain product, whatever rows stand beside it: bit for bit
            e = int((ends <= j).sum())
            assert torch.equal(got[j : j + 1], native.linear(picked[j : j + 1], w[e], b[e]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products_of_the_chosen(dtype: torch.dtype) -> None:
    products(dtype)


def way_back(dtype: torch.dtype) -> None:
    x, order, _, _, _, _ = routed(dtype, 8, 3, 6, 40, 9)
    y, share = rand(18, 40, dtype=dtype, seed=4), rand(1, 6, 3, dtype=torch.float32, seed=5)
    for weighted in (False, True):
        factor = torch.ones(18).double() if weighted else share.flatten()[order].double()
        want = torch.zeros(6, 40).double().index_add(0, order // 3, y.double() * factor[:, None]).view(1, 6, 40)
        got, theirs = both(lambda weighted=weighted: ops.combine(y, share, order, x, weighted))
        assert near(got, want) and no_worse(got, theirs, want)
    assert torch.equal(*both(lambda: ops.weighted(y, share, order)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_way_back(dtype: torch.dtype) -> None:
    way_back(dtype)


def test_only_the_chosen_are_read() -> None:
    """An expert that no token has chosen may be full of NaN."""
    x, _, token, ends, w, b = routed(torch.bfloat16, 16, 2, 2, 32, 24)
    used = set((torch.searchsorted(ends, torch.arange(4), right=True)).tolist())
    for e in set(range(16)) - used:
        w[e] = b[e] = math.nan
    assert len(used) < 5 and ops.grouped(ops.gather(x, token), w, ends, b).isfinite().all()


@kernels
@pytest.mark.parametrize(
    ("name", "wrong", "check"),
    [
        ("best", lambda f: lambda x, a, *how: f(-x, a, *how), choices),
        ("best", lambda f: lambda x, a, *how: f(x, a, 1, 1, 1), choices),
        ("best", lambda f: lambda x, a, groups, some, few: f(x, a, groups, some, 1), choices),
        ("sort", lambda f: lambda chosen, E: f(chosen.flip(1).contiguous(), E), sorting),
        ("experts", lambda f: lambda rows, w, ends, b: f(rows, w.flip(0).contiguous(), ends, b), lambda: products(torch.float32)),
        ("experts", lambda f: lambda rows, w, ends, b: f(rows, w, ends, None), lambda: products(torch.float32)),
        ("combine", lambda f: lambda y, share, order, like: f(y, None, order, like), lambda: way_back(torch.float32)),
        ("combine", lambda f: lambda y, share, order, like: f(y, share, order.flip(0), like), lambda: way_back(torch.float32)),
        ("weigh", lambda f: lambda y, share, order: f(y, share, order.flip(0).contiguous()), lambda: way_back(torch.float32)),
        ("mix", lambda f: lambda x, chosen, near: f(x, chosen, near * 0.9), lambda: test_shares_of_a_sparse_mixer()),
        ("mix", lambda f: lambda x, chosen, near: f(x, chosen.flip(-1).contiguous(), near), lambda: test_shares_of_a_sparse_mixer()),
        ("shares", lambda f: lambda x, chosen, normalised, *how: f(x, chosen, not normalised, *how), lambda: test_shares(True)),
        ("softmax", lambda f: lambda x: f(x) * 1.001, test_scores),
        ("sigmoid", lambda f: lambda x: f(x) * 1.001, test_scores),
    ],
)  # fmt: skip
def test_the_checks_see_a_wrong_kernel(name: str, wrong: Any, check: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, name, wrong(getattr(native, name)))
    with pytest.raises(AssertionError):
        check()
