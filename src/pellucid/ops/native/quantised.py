"""Fast twins for weights in blocks (ops/blocks.py), for any number of rows: products of int8 are faster than torch's of floats.

Rows of x are rounded to int8 in blocks of 32 too, with an error of at most e = largest |x| / 254 of the block. So y differs from x times
the weight's values by at most the sum over blocks of e · Σ|w|. A row has the same bits alone and among many.

Where tiles multiply bf16, more than BLOCK_ROWS rows are rounded to bf16 instead, and the weight's values as well: faster, and with less
than half of that error. Then a row has other bits than alone, so not where those are promised (see library.any_rows).
"""

import torch
from torch import Tensor

from pellucid.ops.blocks import Blocks
from pellucid.ops.native import library
from pellucid.ops.native.library import HALF, call, fresh, most
from pellucid.ops.native.twins import ROUTED, ROWS, address, count, fits, meets, numbers, packed, packed_once

BLOCK_ROWS, TILED = 64, 256  # rows of x in a call, which reads the weight once; and where tiles multiply it, which read it from a panel
CACHED = 3 << 19  # bytes of x that a core keeps beside the panel


def fits_blocks(weight: Tensor, dtype: torch.dtype, axes: int = 2) -> bool:
    """True if weight is in blocks on a CPU, has `axes` axes, and computes in `dtype`, one that the kernels know."""
    if type(weight) is not Blocks or weight.ndim != axes or weight.dtype is not dtype or dtype not in HALF:
        return False
    return all(type(t) is Tensor and t.is_cpu and t.is_contiguous() for t in (weight.codes, weight.scales)) and weight.numel() > 0


def fits_linear_blocks(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return fits_blocks(weight, x.dtype) and x.numel() > 0 and meets(x, weight, bias) and fits(x, bias)


def rows_of_a_call(k: int) -> int:
    """Return the rows of x, `k` numbers each, that one call multiplies by a weight in blocks. A row's bits do not depend on it."""
    return max(BLOCK_ROWS, min(TILED, CACHED // k // 16 * 16)) if library.lib is not None and library.lib.tiles else BLOCK_ROWS


def linear_blocks(x: Tensor, weight: Blocks, bias: Tensor | None) -> Tensor:
    """Multiply x [... in] by weight [out in], and add bias [out]. Returns [... out]."""
    if many_rows(x):
        return many_blocks(x, weight, bias)
    n, k = weight.shape
    codes, scales = weight.codes, weight.scales
    y = fresh((*x.shape[:-1], n), x.dtype)
    reads, rows, size = (x, codes, scales) if bias is None else (x, codes, scales, bias), count(x), x.element_size()
    most_rows = rows_of_a_call(k)
    for at in range(0, rows, most_rows):
        call(
            f"linear_{weight.format}", HALF[x.dtype], reads, (y,), w=codes.data_ptr(), scales=scales.data_ptr(),
            x=x.data_ptr() + at * k * size, y=y.data_ptr() + at * n * size, bias=address(bias), rows=min(most_rows, rows - at), n=n, k=k,
        )  # fmt: skip
    return y


def many_rows(x: Tensor) -> bool:
    """True if the rows of x are as many as tiles multiply faster in bf16, and need not have the bits of a lone run."""
    return count(x) > BLOCK_ROWS and library.lib is not None and library.lib.tiles and not library.here.alone


def many_blocks(x: Tensor, weight: Blocks, bias: Tensor | None) -> Tensor:
    """Multiply as `linear_blocks` does, all rows at once, with x and the weight's values rounded to bf16."""
    n, k = weight.shape
    codes, scales = weight.codes, weight.scales
    y, rows = fresh((*x.shape[:-1], n), x.dtype), packed_once(x, pack_tiles)
    reads = (rows, codes, scales) if bias is None else (rows, codes, scales, bias)
    call(
        f"many_{weight.format}", HALF[x.dtype], reads, (y,), w=codes.data_ptr(), scales=scales.data_ptr(), x=rows.data_ptr(),
        y=y.data_ptr(), bias=address(bias), rows=count(x), n=n, k=k,
    )  # fmt: skip
    return y


def pack_tiles(x: Tensor) -> Tensor:
    """Pack the rows of x [... in], rounded to bf16, for the tiles of `many_blocks`."""
    return packed(x, torch.bfloat16)


def fits_experts_blocks(rows: Tensor, weight: Tensor, ends: Tensor, bias: Tensor | None) -> bool:
    """True for up to ROUTED rows. More go through `linear_blocks` expert by expert."""
    some = 0 < rows.shape[0] <= ROUTED and ends.dtype is torch.int32 and ends.is_contiguous()
    some = some and fits_blocks(weight, rows.dtype, 3) and ends.shape == weight.shape[:1]
    return some and meets(rows, weight, bias) and fits(rows, bias)


def experts_blocks(rows: Tensor, weight: Blocks, ends: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply rows [N in], sorted by expert, by weight [E out in], and add bias [E out]. Returns [N out].

    An expert without rows is not read.
    """
    E, n, k = weight.shape
    codes, scales, y = weight.codes, weight.scales, fresh((rows.shape[0], n), rows.dtype)
    reads = tuple(t for t in (rows, codes, scales, ends, bias) if t is not None)
    call(
        f"experts_{weight.format}", HALF[rows.dtype], reads, (y,), w=codes.data_ptr(), scales=scales.data_ptr(), x=rows.data_ptr(),
        y=y.data_ptr(), bias=address(bias), ends=ends.data_ptr(), rows=rows.shape[0], experts=E, n=n, k=k,
    )  # fmt: skip
    return y


def fits_embedding_blocks(ids: Tensor, table: Tensor) -> bool:
    return fits_blocks(table, table.dtype) and 0 < ids.numel() <= most(ROWS) and numbers(ids) and fits()


def embedding_blocks(ids: Tensor, table: Blocks) -> Tensor:
    """Look up and dequantise the rows of table [rows width] at ids [...]. Returns [... width]. An id outside the table gives NaN."""
    y = fresh((*ids.shape, table.shape[1]), table.dtype)
    codes, scales = table.codes, table.scales
    call(
        f"embedding_{table.format}", HALF[table.dtype], (ids, codes, scales), (y,), table=codes.data_ptr(), scales=scales.data_ptr(),
        ids=ids.data_ptr(), y=y.data_ptr(), rows=ids.numel(), width=table.shape[1], count=table.shape[0],
    )  # fmt: skip
    return y
