"""The types of GGUF's tensors: how many numbers and bytes a block of each has, and the numbers that a block's bytes stand for.

    Q8_0  d, 32 codes               d·q            Q4_1  d, m, 32 × 4 bits              d·q + m
    Q4_0  d, 32 × 4 bits            d·(q - 8)      Q6_K  256 × 6 bits, 16 scales, d     d·s·(q - 32)
    Q4_K  d, m, 8 scales and minima of 6 bits, 256 × 4 bits                             d·s·q - m·t

d and m are float16. Everything is computed in float32, in llama.cpp's order, so that the numbers are its own to the bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Dequantise = Callable[[Tensor], Tensor]
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # the 16 values of IQ4's codes
E2M1_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


@dataclass(frozen=True)
class BlockType:
    """A type of tensor. code: its number in files.  block, bytes: of one block.  plain: the dtype of a type without blocks."""

    name: str
    code: int
    block: int
    bytes: int
    plain: torch.dtype | None = None
    dequantise: Dequantise | None = None


def half(raw: Tensor) -> Tensor:
    """Return bytes [N 2] as numbers [N 1]."""
    return raw.contiguous().view(torch.float16).float()


def nibbles(raw: Tensor, run: int) -> Tensor:
    """Return the codes of bytes [N n]: of each `run` bytes first the low halves, then the high ones, [N 2n]."""
    return bits(raw, 4, run, 15)


def bits(raw: Tensor, step: int, run: int, mask: int) -> Tensor:
    """Return the fields of `step` bits of bytes [N n]: of each `run` bytes the lowest field of all of them, then the next one."""
    parts = raw.unflatten(-1, (-1, 1, run))
    shifts = torch.arange(0, 8, step, dtype=torch.uint8)[:, None]
    return ((parts >> shifts) & mask).flatten(1)  # type: ignore[no-any-return]


def cut(raw: Tensor, *sizes: int) -> Sequence[Tensor]:
    """Split bytes [N n] into fields of these sizes; the last one has what is left."""
    return raw.split([*sizes, raw.shape[1] - sum(sizes)], 1)  # type: ignore[no-any-return]


def scaled(scale: Tensor, codes: Tensor) -> Tensor:
    """Return codes [N n] times scales [N k], each over n / k codes in a row."""
    return (scale[..., None] * codes.float().unflatten(-1, (scale.shape[1], -1))).flatten(1)  # type: ignore[no-any-return]


def q8_0(raw: Tensor) -> Tensor:
    d, codes = cut(raw, 2)
    return half(d) * codes.view(torch.int8).float()


def q4_0(raw: Tensor) -> Tensor:
    d, codes = cut(raw, 2)
    return half(d) * (nibbles(codes, 16).to(torch.int8) - 8).float()


def q4_1(raw: Tensor) -> Tensor:
    d, m, codes = cut(raw, 2, 2)
    return half(d) * nibbles(codes, 16).float() + half(m)


def fifth(high: Tensor) -> Tensor:
    """Return the 32 bits of bytes [N 4], the lowest first, as 0 or 16."""
    return ((high[..., None] >> torch.arange(8, dtype=torch.uint8)) & 1).flatten(1) << 4


def q5_0(raw: Tensor) -> Tensor:
    d, high, codes = cut(raw, 2, 4)
    return half(d) * ((nibbles(codes, 16) | fifth(high)).to(torch.int8) - 16).float()


def q5_1(raw: Tensor) -> Tensor:
    d, m, high, codes = cut(raw, 2, 2, 4)
    return half(d) * (nibbles(codes, 16) | fifth(high)).float() + half(m)


def q2_k(raw: Tensor) -> Tensor:
    scales, codes, d, m = cut(raw, 16, 64, 2)
    low = (half(m) * (scales >> 4).float())[..., None]
    return (scaled(half(d) * (scales & 15).float(), bits(codes, 2, 32, 3)).unflatten(-1, (16, -1)) - low).flatten(1)  # type: ignore[no-any-return]


def q3_k(raw: Tensor) -> Tensor:
    high, codes, packed, d = cut(raw, 32, 64, 12)
    low, top = cut(packed, 8)
    scales = (nibbles(low, 8) | (bits(top, 2, 4, 3) << 4)).to(torch.int8) - 32
    values = bits(codes, 2, 32, 3).to(torch.int8) - ((bits(high, 1, 32, 1) ^ 1) << 2).to(torch.int8)
    return scaled(half(d) * scales.float(), values)


def scales_and_minima(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the 8 scales and 8 minima of 6 bits in bytes [N 12] of Q4_K and Q5_K."""
    first, second, both = packed.split(4, 1)
    scales = torch.cat((first & 63, (both & 15) | ((first >> 2) & 48)), 1)
    return scales.float(), torch.cat((second & 63, (both >> 4) | ((second >> 2) & 48)), 1).float()


def with_minima(d: Tensor, m: Tensor, packed: Tensor, codes: Tensor) -> Tensor:
    scales, minima = scales_and_minima(packed)
    return (scaled(half(d) * scales, codes).unflatten(-1, (8, -1)) - (half(m) * minima)[..., None]).flatten(1)  # type: ignore[no-any-return]


def q4_k(raw: Tensor) -> Tensor:
    d, m, packed, codes = cut(raw, 2, 2, 12)
    return with_minima(d, m, packed, nibbles(codes, 32))


def q5_k(raw: Tensor) -> Tensor:
    d, m, packed, high, codes = cut(raw, 2, 2, 12, 32)
    return with_minima(d, m, packed, nibbles(codes, 32) | (bits(high, 1, 32, 1) << 4))


def q6_k(raw: Tensor) -> Tensor:
    low, high, scales, d = cut(raw, 128, 64, 16)
    codes = (nibbles(low, 64) | (bits(high, 2, 32, 3) << 4)).to(torch.int8) - 32
    return scaled(half(d) * scales.contiguous().view(torch.int8).float(), codes)


def iq4(codes: Tensor) -> Tensor:
    return torch.tensor(IQ4, dtype=torch.float32)[nibbles(codes, 16).int()]


def iq4_nl(raw: Tensor) -> Tensor:
    d, codes = cut(raw, 2)
    return half(d) * iq4(codes)


def iq4_xs(raw: Tensor) -> Tensor:
    d, high, low, codes = cut(raw, 2, 2, 4)
    pairs = ((high[..., None] >> torch.arange(0, 8, 2, dtype=torch.uint8)) & 3).flatten(1)
    lower = ((low[..., None] >> torch.tensor([0, 4], dtype=torch.uint8)) & 15).flatten(1)
    return scaled(half(d) * ((lower | (pairs << 4)).to(torch.int8) - 32).float(), iq4(codes))


def mxfp4(raw: Tensor) -> Tensor:
    e, codes = cut(raw, 1)
    power = e.int()  # 2^(e - 128): the values are doubled; the two smallest exponents are no normal numbers
    d = torch.where(power < 2, 0x00200000 << power.clamp(max=1), (power - 1) << 23).view(torch.float32)
    return d * torch.tensor(E2M1_DOUBLED, dtype=torch.float32)[nibbles(codes, 16).int()]


TYPES = (
    BlockType("F32", 0, 1, 4, torch.float32),
    BlockType("F16", 1, 1, 2, torch.float16),
    BlockType("BF16", 30, 1, 2, torch.bfloat16),
    BlockType("F64", 28, 1, 8, torch.float64),
    BlockType("Q4_0", 2, 32, 18, dequantise=q4_0),
    BlockType("Q4_1", 3, 32, 20, dequantise=q4_1),
    BlockType("Q5_0", 6, 32, 22, dequantise=q5_0),
    BlockType("Q5_1", 7, 32, 24, dequantise=q5_1),
    BlockType("Q8_0", 8, 32, 34, dequantise=q8_0),
    BlockType("Q2_K", 10, 256, 84, dequantise=q2_k),
    BlockType("Q3_K", 11, 256, 110, dequantise=q3_k),
    BlockType("Q4_K", 12, 256, 144, dequantise=q4_k),
    BlockType("Q5_K", 13, 256, 176, dequantise=q5_k),
    BlockType("Q6_K", 14, 256, 210, dequantise=q6_k),
    BlockType("IQ4_NL", 20, 32, 18, dequantise=iq4_nl),
    BlockType("IQ4_XS", 23, 256, 136, dequantise=iq4_xs),
    BlockType("MXFP4", 39, 32, 17, dequantise=mxfp4),
)
BY_CODE = {t.code: t for t in TYPES}
BY_NAME = {t.name: t for t in TYPES}
UNREAD = {9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S", 24: "I8", 25: "I16"}
UNREAD |= {26: "I32", 27: "I64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4", 41: "Q1_0"}  # known by name
