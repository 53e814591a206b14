"""The bytes of a weight in a format: its numbers, and the scales that blocks share, counted from its shape with ragged edges.

    int4    4096 × 100    4,096 rows of 50 bytes, and 4 scales a row, the last for 4 numbers alone

Tensors that a format does not touch stay in the dtype of activations.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, prod

from pellucid.counting.bill import BYTES, Bill, Counted
from pellucid.counting.gguf_mixes import MIXES
from pellucid.counting.number import Number, total
from pellucid.families.quantisation import in_blocks, is_matrix
from pellucid.ops.blocks import BITS

TABLES = frozenset({"positions", "types", "tasks", "table"})


@dataclass(frozen=True)
class Format:
    """A format. bits: of a number.  block: rows and columns that share scales.  scale: their bytes.  only, spared: parts of a model.

    tensor: bytes that a whole matrix shares.
    """

    bits: int
    block: tuple[int, int]
    scale: Fraction
    only: frozenset[str] = frozenset()
    spared: frozenset[str] = frozenset()
    tensor: int = 0


PRODUCTS = frozenset({"embed", "head", "router"}) | TABLES  # what formats of products alone leave plain


def of(bits: int, columns: int, scale: float, tensor: int = 0, rows: int = 1, **parts: frozenset[str]) -> Format:
    return Format(bits, (rows, columns), Fraction(scale), tensor=tensor, **parts)


FORMATS = {
    "int8": of(8, 32, 2),  # ours, ops/blocks.py
    "int4": of(4, 32, 2),
    "fp8": of(8, 128, 4, rows=128, spared=PRODUCTS),  # arXiv 2412.19437, 3.3
    "mxfp4": of(4, 32, 1, only=frozenset({"experts"})),  # arXiv 2310.10537
    # GPTQ and AWQ: a float16 scale and a zero of 4 bits a group (arXiv 2210.17323, 2306.00978)
    **{f"int4-g{n}": of(4, n, 2.5, spared=PRODUCTS) for n in (32, 64, 128)},
    "nf4": of(4, 64, 4, spared=PRODUCTS),  # bitsandbytes: a float32 for 64 numbers (arXiv 2305.14314)
    # its scales in 8 bits, and a float32 for 256 of them; their mean, and a table of 16 float32 for each of both codes
    "nf4-double": of(4, 64, 1 + 4 / 256, spared=PRODUCTS),
    "nvfp4": of(4, 16, 1, 4, spared=PRODUCTS),  # a scale in fp8 for 16 numbers, and a float32 for all
    # llama.cpp's, of 256 numbers: 84, 110, 144, 176 and 210 bytes
    **{f"q{bits}_k": of(bits, 256, size - 32 * bits) for bits, size in ((2, 84), (3, 110), (4, 144), (5, 176), (6, 210))},
}
# what a mix gives its matrices; all else of such a file is float32
BLOCK_TYPES = {name: FORMATS[name] for name in FORMATS if name.endswith("_k")} | {
    "q4_0": of(4, 32, 2), "q5_0": of(5, 32, 2), "q5_1": of(5, 32, 4), "q8_0": of(8, 32, 2), "float16": of(16, 1, 0),
}  # fmt: skip
QUANTISED = frozenset({*FORMATS, *MIXES})
IN_BLOCKS = frozenset({*BITS, "q8_0", "q4_0"})  # those whose blocks stay as they are in memory here
DTYPES = (*BYTES, *(name for name in FORMATS if name not in BYTES), *MIXES)


def format_of(c: Counted, dtype: str) -> Format | None:
    """Return the format of one weight, None if it stays plain, as biases and norms always do."""
    if dtype in MIXES:
        return BLOCK_TYPES.get(c.form)
    f = FORMATS.get(dtype)
    matrix = c.weight.parameter and is_matrix(c.path, c.weight.shape)
    if dtype in BITS and not in_blocks(c.path, c.weight.shape):
        return None
    if f is None or not matrix or c.part == "norms" or c.part in f.spared or (f.only and c.part not in f.only):
        return None
    return f


def size(c: Counted, dtype: str, plain: str, shape: tuple[int, ...] | None = None) -> Number:
    """Return the bytes of one weight, or of a shard of it with another shape. plain: the dtype of what is not quantised."""
    shape = c.weight.shape if shape is None else shape
    f = format_of(c, dtype)
    if f is None:
        each = 4.0 if dtype in MIXES or not c.weight.parameter else BYTES[plain if dtype in FORMATS else dtype]
        return Number(int(prod(shape) * each), "N·b", f"{prod(shape):,}·{each:g}")
    *lead, rows, columns = shape
    row = ceil(columns * f.bits / 8)
    blocks = ceil(rows / f.block[0]), ceil(columns / f.block[1])
    scales = ceil(blocks[0] * blocks[1] * f.scale)
    value = prod(lead) * (rows * row + scales + f.tensor)
    symbols = "rows·⌈columns·bits / 8⌉ + ⌈blocks·scale⌉" if f.scale.denominator > 1 else "rows·⌈columns·bits / 8⌉ + blocks·scale"
    shared = f"{blocks[0]:,}·{blocks[1]:,}·{float(f.scale):g}"
    shared = f"⌈{shared}⌉" if f.scale.denominator > 1 else shared
    symbols, more = (f"{symbols} + {f.tensor}", f" + {f.tensor}") if f.tensor else (symbols, "")
    filled = f"({rows:,}·{row:,} + {shared}{more})"
    return Number(value, f"E·({symbols})" if lead else symbols, "·".join([*(f"{n:,}" for n in lead), filled] if lead else [filled[1:-1]]))


def add_bytes(bill: Bill) -> None:
    """Add the bytes of every weight on disk, by part and in all, and the total with all numbers as wide as activations."""
    s, numbers = bill.setting, bill.numbers
    parts: dict[str, list[tuple[str, int, Number]]] = {}
    for c in bill.weights:
        numbers[f"bytes.{c.path}"] = size(c, s.weights, s.activations)
        parts.setdefault(c.part, []).append((c.path, c.times, numbers[f"bytes.{c.path}"]))
    for part, weights_in in parts.items():
        numbers[f"bytes.by_part.{part}"] = total(weights_in, "bytes")
    numbers["bytes.total"] = total(((p, 1, numbers[f"bytes.by_part.{p}"]) for p in parts), "bytes.by_part")
    plain = [(c.path, c.times, size(c, s.activations, s.activations)) for c in bill.weights]
    if s.weights in QUANTISED:
        value = sum(times * n.value for _, times, n in plain)
        numbers["bytes.dequantised"] = Number(value, f"N·{BYTES[s.activations]:g}")
