"""Every kernel on odd shapes: one number, one less and one more than a vector or a tile holds, ragged rows, experts without rows."""

import torch
from torch import Tensor

import test_attend_tiles as tiles
import test_blocks
import test_held
import test_kept_tables as kept
import test_many_rows as many
import test_native
import test_native_arm64 as every
import test_native_kinds as kinds
import test_native_rows as rows
from pellucid.ops import native
from pellucid.ops.blocks import BITS, quantised
from pellucid.ops.native import library, twins
from pellucid.ops.sampling.settings import Sampling
from pellucid.ops.sampling.stages import sure_draw
from pellucid.ops.sampling.token_mask import TokenMask

SIZES = (1, 7, 17, 33, 129)
LARGE = ((81, 300, 45), (600, 257, 33))  # rows, k and n of products in several blocks
ROUTES = ((0, 7, 7, 8, 17), (0, 0, 0, 0, 1), (33, 33, 33, 33, 33), (1, 8, 25, 58, 59), (0, 81, 81, 164, 165))  # ends of five experts


def products(dtype: torch.dtype) -> None:
    """Multiply by plain weights and by blocks: any rows, any width, with and without a bias."""
    for i, k in enumerate(SIZES):
        for j, count in enumerate(SIZES):
            n = SIZES[(i + j) % len(SIZES)]
            x, w, b = (test_native.rand(*shape, dtype=dtype) for shape in ((count, k), (n, k), (n,)))
            with native.any_rows():
                native.linear(x, w, b), native.linear(x, w, None), native.linear_wide(x, w, None)
            for form in BITS:
                blocks = quantised(w.float(), form, dtype)
                native.linear_blocks(x, blocks, b), native.linear_blocks(x, blocks, None)
                native.embedding_blocks(torch.tensor([0, n - 1, n, -1]), blocks)
    for count, k, n in LARGE:
        x, w, b = (test_native.rand(*shape, dtype=dtype) for shape in ((count, k), (n, k), (n,)))
        with native.any_rows():
            native.linear(x, w, b), native.linear_wide(x, w, None)
        for form in BITS:
            native.linear_blocks(x, quantised(w.float(), form, dtype), b)


def gated() -> None:
    """Compute the neurons of gated parts by the one call that a plan has for three."""
    for count, k, n in ((17, 33, 7), (33, 7, 129), *LARGE):
        x, gate, up = (test_native.rand(*shape, dtype=torch.bfloat16) for shape in ((count, k), (n, k), (n, k)))
        b, y = test_native.rand(n, dtype=torch.bfloat16), torch.empty(count, n, dtype=torch.bfloat16)
        rows = twins.pack(x)
        for bias in (b, None):
            twins.call(
                "neurons_many", 1, (rows, gate, up, *([] if bias is None else [bias])), (y,), gate=gate.data_ptr(), up=up.data_ptr(),
                x=rows.data_ptr(), y=y.data_ptr(), gate_bias=twins.address(bias), up_bias=twins.address(bias), rows=count, n=n, k=k,
                act=twins.ACTS["silu"], amount=0.0,
            )  # fmt: skip


def routed(dtype: torch.dtype) -> None:
    """Multiply by experts, of which some or all but one have no rows."""
    for k, n in ((1, 7), (33, 17), (129, 33), (300, 45)):
        w, b = test_native.rand(5, n, k, dtype=dtype), test_native.rand(5, n, dtype=dtype)
        for route in ROUTES:
            x, ends = test_native.rand(route[-1], k, dtype=dtype), torch.tensor(route, dtype=torch.int32)
            for weight in (w, *(quantised(w.float(), form, dtype) for form in BITS)):
                multiply(x, weight, ends, b)


def multiply(x: Tensor, w: Tensor, ends: Tensor, b: Tensor) -> None:
    with native.any_rows():
        if native.fits_experts_blocks(x, w, ends, b):
            native.experts_blocks(x, w, ends, b), native.experts_blocks(x, w, ends, None)
        elif native.fits_experts(x, w, ends, b):
            native.experts(x, w, ends, b), native.experts(x, w, ends, None)


def small(dtype: torch.dtype) -> None:
    """Run the norms, gates and the like at each width."""
    for width in SIZES:
        test_native.test_norms(dtype, width)
        test_native.test_add_and_gates(dtype, width)
        native.argmax(test_native.rand(1, 3, width, dtype=dtype))
        for word in (-1, 0):  # all tokens are allowed, or the last alone
            words = torch.full((-(-width // 32),), word, dtype=torch.int32)
            words[-1] = -1
            native.largest_allowed(test_native.rand(width, dtype=dtype), words)
            sure_draw(test_native.rand(width, dtype=dtype), Sampling(1.0, seed=1), 0, 0, None, TokenMask(words, width))
        every.states(dtype)
        for form in BITS:
            test_blocks.test_rows_of_a_table(form, dtype, width, None)
    for interleaved in (False, True):
        for rotary, head in ((2, 7), (6, 17), (18, 33), (34, 129)):
            test_native.test_angles_and_rotate(dtype, interleaved, rotary, head)


def attention(dtype: torch.dtype) -> None:
    """Attend under every mask, on pages of odd sizes, with heads of odd widths; rows of several requests at once."""
    for heads, groups, key, value, size in ((1, 1, 1, 1, 1), (7, 7, 7, 17, 5), (3, 1, 129, 33, 7), (17, 1, 33, 7, 33)):
        test_native.test_attend(dtype, heads, groups, key, value, size)
    for name in rows.masks(dtype):
        rows.check(name, dtype, 4, 1, 17, 7)
    for name in ("causal", "window"):
        test_held.check(name, dtype, 7)
    for i, mask in enumerate(many.every_mask(dtype).values()):
        for int8 in {False, i % 2 == 0}:
            with native.any_rows():
                many.check_rows(mask, dtype, many.SHAPES[i % len(many.SHAPES)], int8, ((50, 50), (61, 9)))
        kept.check(mask, dtype, 61, 19)
    if library.lib is not None and "attend_tiles" in library.lib.ops and dtype is torch.bfloat16:
        for i, name in enumerate(tiles.MASKS):
            tiles.check(name, tiles.SHAPES[i % len(tiles.SHAPES)], ((17, 17), (61, 33)))
            tiles.check(name, tiles.LARGE[i % len(tiles.LARGE)], ((2, 2), (50, 9)))
            for shape, texts in ((tiles.SHAPES[0], ((60, 60), (301, 40))), (tiles.LARGE[i % len(tiles.LARGE)], ((50, 9),))):
                tiles.test_tables_are_what_it_computed(name, shape, texts)
        tiles.check_texts(dtype, tiles.MASKS["causal"], tiles.SHAPES[0])
    rows.test_rows_of_several_requests_in_one_call(dtype)
    test_held.test_rows_of_several_requests_in_one_call(dtype)
    kinds.latents(dtype)


def run() -> None:
    """Run them all in both dtypes."""
    with torch.no_grad():
        for dtype in test_native.DTYPES:
            every.kernels_of(dtype)
            products(dtype)
            routed(dtype)
            small(dtype)
            attention(dtype)
        every.kernels_of_floats()
        if library.lib is not None and library.lib.tiles:
            gated()
