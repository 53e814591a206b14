"""The kernels for arm64, under qemu: every kernel at odd shapes, each call compared with AVX2's bit by bit.

`python -m campaigns.arm64` runs whole files of tests so. Skipped where the cross compiler, qemu or AVX2 is missing.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import test_blocks
import test_convolve
import test_cuts
import test_held
import test_native
import test_native_experts as experts
import test_native_kinds as kinds
import test_native_rows as rows
import test_native_sets as sets
import test_ssd
from covering import FULL
from emulated import Compared, build, installed, missing
from pellucid import ops
from pellucid.batch.kv_cache import KVCache
from pellucid.ops import native
from pellucid.ops.native import make
from pellucid.ops.sampling.token_mask import TokenMask
from tiny import swapped

NAMES = list(make.ARM) if FULL else ["neon_dot"]
pytestmark = pytest.mark.skipif(missing() is not None, reason=f"arm64 is not judged: {missing()}")
full = pytest.mark.skipif(not FULL, reason="PELLUCID_FULL=1 compiles mutants")


@pytest.fixture(scope="module", params=NAMES)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(request.param, tmp_path_factory.mktemp("arm64"), make.HERE, "-O1")


@pytest.fixture
def arm64(program: Path) -> Iterator[Compared]:
    lib = Compared(program)
    with torch.no_grad(), installed(lib):
        yield lib


def kernels_of(dtype: torch.dtype) -> None:
    """Run checks that other files state, at few shapes."""
    test_native.test_norms(dtype, 31)
    test_native.test_add_and_gates(dtype, 9)
    test_native.test_gates_at_the_ends(dtype)
    test_native.test_embedding(dtype)
    test_native.test_angles_and_rotate(dtype, True, 6, 6)
    test_native.test_angles_and_rotate(dtype, False, 34, 40)
    test_native.test_attend(dtype, 6, 2, 5, 9, 3)
    test_native.test_attend(dtype, 3, 3, 33, 130, 1)
    test_native.test_store(dtype)
    test_native.test_argmax(dtype)
    for width in (1, 33, 130):
        x = test_native.rand(width, dtype=dtype)
        native.largest_allowed(x, TokenMask.of(x > 0).words)
    kinds.test_latents_where_they_lie(dtype)
    kinds.memories(dtype)
    kinds.test_sinusoids(dtype)
    kinds.test_frequencies_by_length(dtype)
    experts.test_products_of_the_chosen(dtype)
    experts.way_back(dtype)
    rows.test_limits_factors_and_gates(dtype)
    for first in (0, 1):
        rows.test_queries_that_grow(dtype, first)
    rows.test_a_wide_product_is_not_rounded(dtype)
    rows_in_int8(dtype)
    native.xielu(test_native.rand(1, 3, 33, dtype=dtype, scale=3), *(torch.tensor([x], dtype=dtype) for x in (0.6, -0.4, 0.5, -1e-6)))
    products(dtype)
    for form in test_blocks.BITS:
        test_blocks.product(form, dtype, 100)
        test_blocks.test_rows_of_a_table(form, dtype, 33, None)
        test_blocks.test_experts_in_blocks(form, dtype, None)
    test_convolve.test_the_kernel_is_the_reference(dtype, True)
    test_ssd.test_the_kernels_err_no_more(dtype)
    states(dtype)


def kernels_of_floats() -> None:
    """Run those of kernels that know float32 alone."""
    experts.test_scores()
    experts.choices()
    experts.test_shares(True)
    experts.test_sorting()
    for size in (7, 513):
        test_cuts.test_kernels(size, None)
    test_cuts.test_draws_are_the_stages_(None)
    x = test_native.rand(1, 5, 9, dtype=torch.float32, scale=4)
    native.mix(x, x.topk(2)[1], 0.1)
    native.stream(torch.zeros(1 << 18, dtype=torch.uint8))


def rows_in_int8(dtype: torch.dtype) -> None:
    """Round rows to codes, read them back, and attend to them."""
    test_held.test_the_kernels_round_as_torch_does(dtype)
    q, plain = test_native.paged(dtype, 17, 3, 4, 2, 24, 9, 3)
    ops.attend(q, KVCache([test_held.in_int8(plain)]), rows.masks(dtype)["causal"], 0.4)


def products(dtype: torch.dtype) -> None:
    """Compare a product of many rows with that of fewer, as deterministic mode has them."""
    for k in (33, 257):
        x, w, b = sets.operands(33, 50, k, dtype)
        with native.any_rows():
            y, wide = native.linear(x, w, b), native.linear_wide(x, w, None)
        for count in (1, 2, 3, 4, 5, 6, 7, 16):
            assert torch.equal(native.linear(x[:count], w, b), y[:count])
        assert torch.equal(native.linear_wide(x[32:], w, None), wide[32:])


def states(dtype: torch.dtype) -> None:
    """Compare what a scan's steps in time are made of with torch's."""
    x, bias = test_native.rand(1, 3, 9, dtype=dtype, scale=9), test_native.rand(9, dtype=dtype, seed=1)
    step = native.softplus(x, bias, 0.001, None)
    assert torch.allclose(step, torch.nn.functional.softplus(x.float() + bias.float()).clamp(0.001), rtol=1e-5, atol=1e-6)
    assert torch.allclose(native.decay(step, bias), torch.exp(-torch.exp(bias.float()) * step), rtol=1e-5, atol=1e-6)


def test_every_kernel_has_the_bits_of_avx2(arm64: Compared) -> None:
    for dtype in test_native.DTYPES if FULL else [torch.float32]:
        kernels_of(dtype)
    products(torch.bfloat16)
    kernels_of_floats()
    assert arm64.called == set(arm64.ops) and arm64.bytes > 100_000


def test_a_bit_that_differs_is_seen(arm64: Compared) -> None:
    """The mutants lose a change, and turn the last bit of one number. Each sum is a new one: freed memory may hold an old one."""
    x, y = torch.arange(40.0), torch.ones(40)
    native.add(x, y)
    for more, wrong in enumerate((lambda data: data[:-1] + bytes([data[-1] ^ 1]), None), start=2):
        right = arm64.answer

        def answer(request: bytes, wrong=wrong, right=right):  # type: ignore[no-untyped-def]
            result, touched, changes = right(request)
            return result, touched, changes[:-1] + ([(changes[-1][0], wrong(changes[-1][1]))] if wrong else [])

        with swapped(arm64, "answer", answer), pytest.raises(AssertionError, match="add: arm64 differs from AVX2"):
            native.add(x, y * more)


@full
@pytest.mark.parametrize(
    ("header", "old", "new", "dtype"),
    [
        ("vectors_neon.h", "return {vfmaq_f32(c.a, a.a, b.a), vfmaq_f32(c.b, a.b, b.b)};", "return a * b + c;", torch.float32),
        ("vectors_neon.h", "vadd_f32(vget_low_f32(h), vget_high_f32(h))", "vpadd_f32(vget_low_f32(h), vget_high_f32(h))", torch.float32),
        ("vectors_neon.h", "vreinterpretq_f32_u16(vzip2q_u16(zero, v))", "vreinterpretq_f32_u16(vzip2q_u16(v, v))", torch.bfloat16),
    ],
    ids=["fma rounds twice", "another order of a sum", "bits below bf16"],
)
def test_a_wrong_vector_is_seen(header: str, old: str, new: str, dtype: torch.dtype, tmp_path: Path) -> None:
    folder = tmp_path / "native"
    shutil.copytree(make.HERE, folder, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    text = (folder / header).read_text(encoding="utf-8")
    assert text.count(old) == 1
    (folder / header).write_text(text.replace(old, new), encoding="utf-8")
    lib = Compared(build("neon_dot", tmp_path, folder, "-O1"))
    with torch.no_grad(), installed(lib), pytest.raises(AssertionError, match="arm64 differs from AVX2"):
        products(dtype)


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "PATH", "")
    sentence = missing()
    assert sentence is not None and "\n" not in sentence and "qemu-aarch64" in sentence and "g++-aarch64-linux-gnu" in sentence
