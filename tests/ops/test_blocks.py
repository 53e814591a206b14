"""Weights in blocks: their rounding, each kernel of each instruction set against float64, and the tensor that torch reads."""

import copy
import math
import struct

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pellucid import ops
from pellucid.errors import UseError
from pellucid.ops import blocks, native
from pellucid.ops.blocks import BITS, Blocks, quantised
from pellucid.ops.native import library, make
from pellucid.ops.native import quantised as twins

DTYPES = [torch.float32, torch.bfloat16]
WIDTHS = [1, 2, 17, 31, 32, 33, 64, 95, 96, 128, 160, 512, 530, 768, 1056]
SETS = [name for name in make.FLAGS if native.available() and library.load(name) is not None]


@pytest.fixture(params=SETS or [None])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Use each instruction set of this machine, in turn."""
    if request.param is not None:
        monkeypatch.setattr(library, "lib", library.load(request.param))
    return request.param


def rand(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))) * scale


def half(x: float) -> float:
    """Return x as float16 stores it."""
    return float(struct.unpack("e", struct.pack("e", x))[0])


def by_hand(row: list[float], form: str) -> tuple[list[int], list[float]]:
    """Return q8_0's and q4_0's codes and scales of a row, number by number."""
    codes, scales = list[int](), list[float]()
    for start in range(0, len(row), 32):
        block = row[start : start + 32]
        largest = max(block, key=abs)
        scale = float(torch.tensor(abs(largest) / 127 if form == "int8" else largest / -8, dtype=torch.float32))
        inverse = 1 / scale if scale else 0.0
        for x in block:
            codes.append(int(math.copysign(abs(x * inverse) + 0.5, x)) if form == "int8" else min(15, int(x * inverse + 8.5)) - 8)
        scales.append(half(scale))
    return codes, scales


def rounded(x: Tensor) -> Tensor:
    """Return rows as the kernels round them: to integers of each block's largest over 127."""
    parts = F.pad(x.double(), (0, -x.shape[-1] % 32)).unflatten(-1, (-1, 32))
    scale = parts.abs().amax(-1, keepdim=True) / 127
    return ((parts / scale).nan_to_num().float().round().double() * scale).flatten(-2)[..., : x.shape[-1]]


def near(y: Tensor, truth: Tensor) -> bool:
    """Return True if y is truth up to sums in float32 and one rounding to its dtype."""
    tiny = 3e-6 if y.dtype is torch.float32 else 8e-3
    return float((y.double() - truth).abs().max()) <= tiny * float(truth.abs().max())


@pytest.mark.parametrize("form", BITS)
@pytest.mark.parametrize("width", [1, 31, 32, 33, 100])
def test_rounding_is_llama_cpps(form: str, width: int) -> None:
    w = torch.cat([rand(5, width), torch.zeros(1, width), rand(1, width, scale=1e-9), torch.full((1, width), -3.0)])
    made = quantised(w, form)
    assert made.codes.shape == (8, -(-width * BITS[form] // 8)) and made.scales.shape == (8, -(-width // 32))
    for row, plain, scales in zip(w.tolist(), made.plain(torch.float64), made.scales, strict=True):
        codes, wanted = by_hand(row, form)
        assert scales.tolist() == wanted
        assert plain.tolist() == [c * wanted[i // 32] for i, c in enumerate(codes)]


@pytest.mark.parametrize("form", BITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_value_is_near_what_it_stands_for(form: str, dtype: torch.dtype) -> None:
    """The error is half a step of int8 and a whole one of int4, whose positive end is cut off, plus float16's rounding."""
    w = rand(3, 40, 100, scale=0.02).to(dtype)
    made = quantised(w, form)
    step = made.scales.double().abs().repeat_interleave(32, -1)[..., :100]
    assert made.shape == w.shape and made.dtype is dtype and made.format == form
    assert ((made.plain(torch.float64) - w.double()).abs() <= step * (0.57 if form == "int8" else 1.01)).all()
    assert (made.plain(torch.float64) - w.double()).abs().max() > step.min() * 0.4  # and it is rounded at all
    assert made.bytes == blocks.size(w.shape, form) == 120 * (100 * BITS[form] // 8 + 4 * 2)
    assert torch.equal(made.plain(), made.plain(torch.float64).to(dtype))


def product(form: str, dtype: torch.dtype, width: int) -> None:
    for n in (1, 9, 300):
        w, b = quantised(rand(n, width, scale=0.05), form, dtype), rand(n, seed=2).to(dtype)
        x = rand(21, width).to(dtype)
        y, truth = ops.linear(x, w, b), rounded(x) @ w.plain(torch.float64).T + b.double()
        assert native.fits_linear_blocks(x, w, b) == native.available()
        if not native.available():
            assert torch.equal(y, F.linear(x, w.plain(), b))
            return
        assert near(y, truth) and near(ops.linear(x, w, None), truth - b.double())
        for start, rows in ((0, 1), (20, 1), (3, 7), (5, 16)):
            assert torch.equal(ops.linear(x[start : start + rows], w, b), y[start : start + rows])


@pytest.mark.parametrize("form", BITS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_products(form: str, dtype: torch.dtype, width: int, kernels: str | None) -> None:
    """Products are near float64 over the same integers, and a row's bits are the same alone and among others."""
    product(form, dtype, width)


@pytest.mark.parametrize("form", BITS)
def test_whole_numbers_are_exact(form: str, kernels: str | None) -> None:
    """Integers with scales of powers of two give exact products, extreme codes of foreign files too."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(-127, 128, (19, 200), generator=draw).float()
    x[:, ::32] = 127
    x[:, 192:] = -127
    codes, scales = blocks.allocate((50, 200), form)
    low, high = (-128, 128) if form == "int8" else (0, 256)
    codes.copy_(torch.randint(low, high, codes.shape, generator=draw))
    codes[:5], codes[5:9] = low, high - 1
    scales.copy_(2.0 ** torch.randint(-3, 2, scales.shape, generator=draw))
    w = Blocks(codes, scales * torch.where(torch.rand(scales.shape, generator=draw) < 0.5, -1, 1), 200, torch.float32)
    truth = x.double() @ w.plain(torch.float64).T
    assert torch.equal(ops.linear(x, w, None).double(), truth)
    assert torch.equal(ops.linear(x[:, None], w, None)[:, 0].double(), truth)


@pytest.mark.parametrize("form", BITS)
@pytest.mark.parametrize("spiky", [False, True])
def test_the_stated_bound(form: str, spiky: bool, kernels: str | None) -> None:
    """The kernels stay within half a step of each block of x, and are not nearer by chance."""
    x, w = rand(6, 330), quantised(rand(70, 330, scale=0.1), form)
    if spiky:
        x[:, 7] *= 300
    truth = x.double() @ w.plain(torch.float64).T
    half_step = F.pad(x.double(), (0, 22)).unflatten(-1, (-1, 32)).abs().amax(-1) / 254
    weight = F.pad(w.plain(torch.float64), (0, 22)).unflatten(-1, (-1, 32)).abs().sum(-1)
    bound = half_step @ weight.T + 1e-5 * truth.abs().max()
    gap = (ops.linear(x, w, None).double() - truth).abs()
    assert (gap <= bound).all()
    assert not native.available() or gap.max() > 0.02 * bound.max()


@pytest.mark.parametrize("form", BITS)
def test_what_is_no_number_shows(form: str, kernels: str | None) -> None:
    """A NaN or an infinity spoils its own row only; zeros and the smallest numbers give zeros."""
    x, w = rand(5, 96), quantised(rand(40, 96) + 0.01, form)
    x[0, 40], x[1, 95], x[2], x[3] = math.nan, -math.inf, 0.0, 1e-42
    y = ops.linear(x, w, None)
    assert not y[:2].isfinite().any() and y[2:].isfinite().all()
    assert (y[2] == 0).all() and (y[3].abs() < 1e-30).all()


@pytest.mark.parametrize("form", BITS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 33, 64, 100])
def test_rows_of_a_table(form: str, dtype: torch.dtype, width: int, kernels: str | None) -> None:
    table, ids = quantised(rand(50, width), form, dtype), torch.tensor([[3, 0, 49, 3], [7, 1, 2, 48]])
    assert torch.equal(ops.embedding(ids, table), table.plain()[ids])
    assert torch.equal(F.embedding(ids, table), table.plain()[ids])
    if native.fits_embedding_blocks(ids, table):
        assert native.embedding_blocks(torch.tensor([50, -1, 1 << 60]), table).isnan().all()


def test_which_calls_fit() -> None:
    x, w = rand(4, 64), quantised(rand(8, 64), "int8")
    assert native.fits_linear_blocks(x, w, None) == native.available()
    assert native.fits_linear_blocks(x, nn.Parameter(w, requires_grad=False), None) == native.available()
    wrong = [
        (x.double(), w), (x.bfloat16(), w), (x, w.double()), (x.double(), w.double()), (x, w.plain()), (x[:0], w),
        (x.requires_grad_(), w), (rand(64, 4).T, w), (x.detach().to("meta"), w), (x.detach(), quantised(rand(2, 8, 64), "int8")),
    ]  # fmt: skip
    assert not any(native.fits_linear_blocks(a, b, None) for a, b in wrong)
    with native.off():
        assert not native.fits_linear_blocks(x.detach(), w, None)


@pytest.mark.parametrize("form", BITS)
def test_torch_sees_the_values(form: str) -> None:
    """Any op reads the values, type checks recognise blocks, and gradients reach what is no weight."""
    w, x = quantised(rand(3, 6, 40), form), rand(5, 40)
    plain = w.plain()
    for kept in (w.detach(), w.clone(), copy.deepcopy(w), nn.Parameter(w, requires_grad=False), w[1], w.to(torch.float64)):
        assert isinstance(kept, Blocks) and kept.format == form
    assert torch.equal(w[1].plain(), plain[1]) and torch.equal(w[1, 2], plain[1, 2]) and type(w[1, 2]) is Tensor
    assert torch.equal(w.double().plain(), w.plain(torch.float64)) and float(w[2, 3, 4]) == float(plain[2, 3, 4])
    for f in (
        lambda t: t * 2,
        lambda t: t.mT,
        lambda t: t.isfinite(),
        lambda t: torch.cat([t, t]),
        lambda t: t.flatten(),
        lambda t: t.int(),
    ):
        assert torch.equal(f(w), f(plain)) and type(f(w)) is Tensor
    x.requires_grad_()
    F.linear(x, w[0]).sum().backward()
    assert torch.equal(x.grad, plain[0].sum(0).expand(5, 40))
    meta = quantised(torch.empty(7, 40, device="meta"), form)
    assert ops.linear(torch.empty(2, 40, device="meta"), meta).shape == (2, 7) and meta.bytes == blocks.size((7, 40), form)
    assert "Parameter" in repr(nn.Parameter(w, requires_grad=False))


@pytest.mark.parametrize(
    "write", [lambda w: w.mul_(2), lambda w: w.copy_(w.plain()), lambda w: w.zero_(), lambda w: torch.add(w, 1, out=w)]
)
def test_nobody_writes_values(write) -> None:
    w = quantised(rand(4, 40), "int8")
    before = w.codes.clone(), w.scales.clone()
    with pytest.raises(UseError, match="quantised"):
        write(w)
    assert torch.equal(w.codes, before[0]) and torch.equal(w.scales, before[1])


def met(form: str, dtype: torch.dtype = torch.float32) -> str:
    """Return where an expert's product differs from that of its own matrix, bit for bit; one without rows is skipped."""
    for width, out, sizes in ((40, 9, (2, 0, 3, 1)), (33, 300, (0, 1, 0, 0)), (128, 70, (13, 9, 0, 8)), (64, 16, (1,) * 8)):
        w, b = quantised(rand(len(sizes), out, width), form, dtype), rand(len(sizes), out, seed=3).to(dtype)
        ends = torch.tensor(sizes).cumsum(0).int()
        rows = rand(sum(sizes), width, seed=1).to(dtype)
        if sizes[1] == 0:  # not finite, and not read
            w.scales[1] = math.nan
        assert native.fits_experts_blocks(rows, w, ends, b) == native.available()
        for bias in (None, b):
            y, at = ops.grouped(rows, w, ends, bias), 0
            for e, n in enumerate(sizes):
                if not torch.equal(y[at : at + n], ops.linear(rows[at : at + n], w[e], None if bias is None else b[e])):
                    return f"{width} {out} {e}"
                at += n
    return ""


@pytest.mark.parametrize("form", BITS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_experts_in_blocks(form: str, dtype: torch.dtype, kernels: str | None) -> None:
    assert met(form, dtype) == ""
    w, rows, ends = quantised(rand(4, 9, 40), form), rand(6, 40), torch.tensor([2, 2, 5, 6])
    assert ops.grouped(rows[:0], w, ends.int() * 0).shape == (0, 9)
    assert not native.fits_experts_blocks(rows, w, ends, None) and not native.fits_experts_blocks(rows, w[0], ends.int(), None)
    many, few = rand(400, 40), torch.tensor([100, 100, 399, 400]).int()  # a prompt's
    with native.any_rows():
        assert torch.equal(ops.grouped(many, w, few)[:7], ops.grouped(many[:7], w, few.clamp(max=7)))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda f: lambda x, w, ends, b: f(x, w, ends, None),
        lambda f: lambda x, w, ends, b: f(x, w.like(w.codes.roll(1, 0), w.scales), ends, b),
        lambda f: lambda x, w, ends, b: f(x, w.like(w.codes, w.scales.roll(1, 0)), ends, b),
        lambda f: lambda x, w, ends, b: f(x, w, ends.roll(1).clamp(max=0), b),
        lambda f: lambda x, w, ends, b: f(x.roll(1, 0), w, ends, b),
    ],
)
@pytest.mark.parametrize("form", BITS)
def test_the_checks_see_other_experts(form: str, wrong, monkeypatch: pytest.MonkeyPatch) -> None:
    if native.available():
        monkeypatch.setattr(native, "experts_blocks", wrong(twins.experts_blocks))
        assert met(form) != ""


@pytest.mark.parametrize(
    "wrong",
    [
        lambda f: lambda x, w, b: f(x, w, None),
        lambda f: lambda x, w, b: f(x, w.like(w.codes, w.scales.roll(1, 0)), b),
        lambda f: lambda x, w, b: f(x, w.like(w.codes, w.scales.roll(1, 1)), b),
        lambda f: lambda x, w, b: f(x, w.like(w.codes.roll(1, 1), w.scales), b),
        lambda f: lambda x, w, b: F.linear(x, w.plain(), b),  # without rounding x
    ],
)
@pytest.mark.parametrize("form", BITS)
def test_the_checks_see_a_wrong_kernel(form: str, wrong, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native.available():
        return
    monkeypatch.setattr(native, "linear_blocks", wrong(twins.linear_blocks))
    with pytest.raises(AssertionError):
        product(form, torch.float32, 96)
