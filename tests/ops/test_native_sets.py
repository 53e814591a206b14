"""Every instruction set that this machine has: products against float64 within a stated bound, and a row's bits in any company.

A set that the machine lacks, or may not use, is skipped.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import campaigns.deterministic as campaign
from pellucid.ops import native
from pellucid.ops.blocks import BITS, quantised
from pellucid.ops.native import library, make, twins
from pellucid.watching.watch import watch
from test_native import DTYPES, rand
from tiny import swapped, tiny

PRODUCTS = ("avx512_bf16", "amx_bf16")  # the sets that multiply bf16 itself
UNIT, LEAST = 2.0**-24, 2.0**-126  # half a step of float32, and its smallest normal number
KS = [1, 2, 3, 31, 32, 33, 100, 257, 768, 2500]
ROWS = [1, 2, 8, 9, 16, 17, 33, 48, 100]


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@contextmanager
def forced(name: str) -> Iterator[None]:
    """Run everything inside by the kernels of one instruction set. Skip a set that this machine lacks or has not built."""
    if name not in library.wanted():
        pytest.skip(f"this machine has no {name}")
    own = library.load(name)
    if own is None:
        pytest.skip(f"{name} is not built: {library.BUILD}")
    with swapped(library, "lib", own):
        yield


each_set = pytest.mark.parametrize("name", make.FLAGS)


def bound(x: Tensor, w: Tensor) -> Tensor:
    """Bound the error of a product whose sums are in float32.

    A product of two bf16 numbers is exact in float32, and one of two float32 numbers is not rounded before it is added. A term passes at
    most k / 16 + 20 sums: two a PAIR and the tree of the lanes; in tiles 17 a step, and one for each later step. Each rounds by UNIT of at
    most the sum of sizes. Sets that multiply bf16 take numbers below LEAST for 0.
    """
    sizes = x.double().abs() @ w.double().abs().T
    flushed = LEAST * (x.double().abs().sum(-1)[:, None] + w.double().abs().sum(-1) + 2 * x.shape[-1])
    return (x.shape[-1] / 16 + 20) * UNIT * 1.001 * sizes + flushed


def operands(rows: int, n: int, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    return rand(rows, k, dtype=dtype), rand(n, k, dtype=dtype, seed=1), rand(n, dtype=dtype, seed=2)


def check_products(dtype: torch.dtype) -> None:
    for k in KS:
        for rows, n in ((1, 300), (5, 61), (16, 33), (40, 50)):
            x, w, b = operands(rows, n, k, dtype)
            truth, most = x.double() @ w.double().T, bound(x, w)
            assert ((native.linear_wide(x, w, None).double() - truth).abs() <= most).all(), (k, rows)
            truth = truth + b.double()
            half = torch.finfo(dtype).eps / 2 * (truth.abs() + most)  # the cell is rounded once, to its own dtype
            assert ((native.linear(x, w, b).double() - truth).abs() <= 1.001 * (most + UNIT * truth.abs() + half)).all(), (k, rows)


@each_set
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products_within_the_bound(name: str, dtype: torch.dtype) -> None:
    with forced(name):
        check_products(dtype)


def rounded_sums(product: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a product whose sum of the first half of k is rounded to bf16."""

    def made(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        cut = x.shape[-1] // 2
        if not cut:
            return product(x, w, bias)
        first = product(x[:, :cut].contiguous(), w[:, :cut].contiguous(), None).bfloat16()
        return first + product(x[:, cut:].contiguous(), w[:, cut:].contiguous(), bias)

    return made


def without_last(product: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a product that forgets the last number of k, as an edge of tiles might."""

    def made(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        return product(torch.cat((x[:, :-1], torch.zeros_like(x[:, -1:])), -1), w, bias)

    return made


@each_set
@pytest.mark.parametrize("wrong", [rounded_sums, without_last])
def test_the_bound_sees_a_wrong_product(name: str, wrong: Callable[..., Any]) -> None:
    with forced(name), swapped(native, "linear_wide", wrong(native.linear_wide)), pytest.raises(AssertionError):
        check_products(torch.bfloat16)


def check_rows(dtype: torch.dtype, alone: Callable[..., Tensor]) -> None:
    """Assert that each row has the bits of `alone` in any number of rows, from any of them on, and on one to three threads."""
    before = torch.get_num_threads()
    try:
        for k in KS[2:]:
            n = 67 if k < 1000 else 50
            x, w, b = operands(max(ROWS), n, k, dtype)
            lone = torch.cat([alone(x[i : i + 1], w, None) for i in range(len(x))])
            for i, rows in enumerate(ROWS):
                torch.set_num_threads(1 + i % 3)
                assert torch.equal(native.linear_wide(x[-rows:], w, None), lone[-rows:]), (k, rows)
            assert torch.equal(native.linear_wide(x, w[:5].contiguous(), None), lone[:, :5]), k  # a column in any company
            assert torch.equal(native.linear(x, w, b), (lone + b.float()).to(dtype)), k
            assert torch.equal(native.linear(x[:1], w, b), (lone[:1] + b.float()).to(dtype)), k
    finally:
        torch.set_num_threads(before)


@each_set
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_has_the_same_bits_in_any_company(name: str, dtype: torch.dtype) -> None:
    with forced(name):
        check_rows(dtype, native.linear_wide)


@each_set
def test_rows_of_two_orders_are_seen(name: str) -> None:
    """The mutant is a lone row whose k is summed from the other end, as one by another kernel might be."""
    with forced(name), pytest.raises(AssertionError):
        check_rows(torch.bfloat16, lambda x, w, b: native.linear_wide(x.flip(-1), w.flip(-1).contiguous(), b))


@each_set
def test_experts_have_the_bits_of_lone_rows(name: str) -> None:
    """An expert of none, one or many rows gives each the bits that it has alone."""
    with forced(name):
        for ends in ([0, 1, 1, 40, 60], [60, 60, 60, 60, 60], [9, 17, 33, 34, 60]):
            x, w, b = rand(60, 70, dtype=torch.bfloat16), rand(5, 50, 70, dtype=torch.bfloat16, seed=1), rand(5, 50, dtype=torch.bfloat16)
            y = native.experts(x, w, torch.tensor(ends, dtype=torch.int32), b)
            for i in range(60):
                e = next(e for e, end in enumerate(ends) if i < end)
                assert torch.equal(y[i], native.linear(x[i : i + 1], w[e], b[e])[0]), (ends, i)


@each_set
def test_numbers_at_the_ends(name: str) -> None:
    """Infinities and NaN go where float32 takes them. Numbers below 2^-126 are 0 to the sets that multiply bf16, to no others."""
    with forced(name):
        for rows in (1, 20):
            x, w = rand(rows, 100, dtype=torch.bfloat16), rand(40, 100, dtype=torch.bfloat16, seed=1)
            x[0, 7], w[3, 50], w[5, 99], w[6, 0] = torch.inf, torch.nan, -torch.inf, 0.0
            y, want = native.linear(x, w, None), F.linear(x.float(), w.float())
            assert torch.equal(y.isnan(), want.isnan()) and torch.equal(y.isinf(), want.isinf())
            assert torch.equal(y[:, 5].sign(), want[:, 5].sign())
            x, w = torch.full((rows, 64), 2.0**-130).bfloat16(), torch.full((3, 64), 2.0**20).bfloat16()
            assert (native.linear_wide(x, w, None) == (0 if name in PRODUCTS else 2.0**-104)).all()
            x = torch.full((rows, 64), 3e38).bfloat16()
            assert native.linear(x, w, None).isinf().all()


@each_set
def test_texts_alone_and_in_batches(name: str) -> None:
    """Deterministic mode: tokens and log-probabilities in bf16 do not go by the other texts there, nor by where a prompt is cut."""
    with forced(name):
        for family in ("llama", "gpt_oss"):
            draw, model = random.Random(name), tiny(family, torch.bfloat16)
            requests = [campaign.random_request(draw) for _ in range(6)]
            assert campaign.mixed(model, requests, draw) == campaign.alone(model, requests)


@each_set
def test_what_a_record_shows_is_what_ran(name: str) -> None:
    """The terms of a recorded cell, made of the operands that it names, add up to the cell within its dtype, for few rows and for many."""
    model, draw = tiny("llama", torch.bfloat16, std=0.2), torch.Generator().manual_seed(1)
    with forced(name):
        for tokens in (3, 40):
            with watch(model, terms=True) as seen:
                model(torch.randint(0, 97, (1, tokens), generator=draw))
            for path in ("layers.0.attn.q", "layers.1.ffn.up", "layers.1.ffn", "logits"):
                value = seen[path].value
                for _ in range(5):
                    at = tuple(int(torch.randint(0, n, (), generator=draw)) for n in value.shape)
                    summands = seen[path].terms(at).summands.double()
                    cell, most = float(value[at]), 2.0**-8 * abs(float(summands.sum())) + 64 * UNIT * float(summands.abs().sum())
                    assert abs(cell - float(summands.sum())) <= most, (path, at)
                    assert abs(cell + 0.5 - float(summands.sum())) > most  # a mutant: a cell that is not the sum


def test_tiles_and_torch_s_own_do_not_meet() -> None:
    """torch's library keeps tiles of its own shapes in the same registers: products in turn are those of either alone."""
    with forced("amx_bf16"):
        x, w = rand(96, 256, dtype=torch.bfloat16), rand(128, 256, dtype=torch.bfloat16, seed=1)
        ours, theirs = [native.linear(x[:n], w, None) for n in (1, 5, 96)], F.linear(x, w)
        for _ in range(3):
            for n, y in zip((1, 5, 96), ours, strict=True):
                assert torch.equal(native.linear(x[:n], w, None), y) and torch.equal(F.linear(x, w), theirs)


@pytest.mark.parametrize("form", BITS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tiles_of_bytes_have_the_bits_of_a_row(form: str, dtype: torch.dtype) -> None:
    """In blocks a row has the same bits alone, which vectors compute, and in any group of a tile. The mutant computes it by another set."""
    differ = 0
    for n, k in ((16, 896), (33, 31), (50, 129), (17, 530)):
        w, x, b = quantised(rand(n, k, dtype=torch.float32), form, dtype), rand(70, k, dtype=dtype), rand(n, dtype=dtype, seed=2)
        with forced("amx_bf16"), native.any_rows():
            each = torch.cat([native.linear_blocks(row[None], w, b) for row in x])
            for rows in (5, 8, 15, 16, 17, 24, 33, 64, 70):
                assert torch.equal(native.linear_blocks(x[:rows], w, b), each[:rows]), (n, k, rows)
            assert torch.equal(native.linear_blocks(x[3:40], w, None), native.linear_blocks(x, w, None)[3:40])
        with forced("avx512_vnni"):
            differ += int((native.linear_blocks(x, w, b) != each).sum())
    assert differ > 0 or dtype is torch.bfloat16  # whose rounding may hide it


def test_the_order_of_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles come first where the system gives them. A core with tiles multiplies bf16 in vectors slowly; one without does it fast."""
    monkeypatch.setattr(library, "FLAGS", make.X86)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    for feature in ("_is_vnni_supported", "_is_avx512_bf16_supported", "_is_amx_tile_supported", "_init_amx"):
        monkeypatch.setattr(torch.cpu, feature, lambda: True)
    assert library.wanted() == ("amx_bf16", "avx512_vnni", "avx512_bf16", "avx512", "avx2")
    monkeypatch.setattr(torch.cpu, "_init_amx", lambda: False)  # refused
    assert library.wanted() == ("avx512_vnni", "avx512_bf16", "avx512", "avx2")
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_init_amx", lambda: pytest.fail("asked for tiles that are not there"))
    assert library.wanted() == ("avx512_bf16", "avx512_vnni", "avx512", "avx2")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    assert library.wanted() == ("avx512_vnni", "avx512", "avx2")


def test_the_order_of_sets_on_arm64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every arm64 processor has NEON; one that the system says has dot products takes them first."""
    monkeypatch.setattr(library, "FLAGS", make.ARM)
    for has, names in ((True, ("neon_dot", "neon")), (False, ("neon",))):
        monkeypatch.setattr(library, "has_dot_products", lambda has=has: has)
        assert library.wanted() == names and set(names) <= make.ARM.keys()


def test_a_prompt_in_bf16_runs_in_tiles() -> None:
    """With tiles the kernels take any number of rows in bf16, and as ever up to 16 of float32."""
    with forced("amx_bf16"):
        for dtype in DTYPES:
            x, w = rand(1, 40, 64, dtype=dtype), rand(9, 64, dtype=dtype, seed=1)
            assert native.fits_linear(x, w, None) == native.fits_norm(x, None) == (dtype is torch.bfloat16)
            with swapped(library.lib, "tiles", False):
                assert native.fits_linear(x, w, None) == twins.leads(dtype) == (dtype is torch.bfloat16 and not twins.BF16_IS_FAST)
