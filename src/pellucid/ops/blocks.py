"""A weight in blocks of 32 along its input axis: small whole numbers, and one scale a block. Its value is code times scale.

    int8    scale = largest |w| / 127            codes -127 ... 127, a byte each
    int4    scale = the w of largest |w| / -8    codes -8 ... 7, two in a byte, the first in the low half, stored plus 8

Both are llama.cpp's formats, q8_0 and q4_0, and round as it does. `Blocks` is a tensor of the weight's shape, in the dtype that it
computes in. Every op of torch gets it dequantised; an op with a kernel for blocks reads the codes and scales themselves.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from pellucid import huge_pages
from pellucid.errors import UseError
from pellucid.ops.precision import wide

BLOCK = 32
SCALE = torch.float16
BITS = {"int8": 8, "int4": 4}
STRIP = 1 << 18  # numbers that are quantised or dequantised at a time, so that their wide copies stay small
aten = torch.ops.aten


class Blocks(Tensor):
    """A weight as codes [... out in] int8, or [... out in/2] bytes of two codes, and scales [... out in/32].

    in/2 and in/32 are rounded up.
    """

    codes: Tensor
    scales: Tensor

    @staticmethod
    def __new__(cls, codes: Tensor, scales: Tensor, width: int, dtype: torch.dtype) -> "Blocks":
        shape = (*codes.shape[:-1], width)
        made: Blocks = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=codes.device)
        made.codes, made.scales = codes, scales
        return made

    @property
    def format(self) -> str:
        """Name the format: "int8" or "int4"."""
        return "int8" if self.codes.dtype is torch.int8 else "int4"

    @property
    def bytes(self) -> int:
        """Count the bytes of codes and scales."""
        return self.codes.nbytes + self.scales.nbytes

    def plain(self, dtype: torch.dtype | None = None) -> Tensor:
        """Dequantise, rounding once to `dtype`, by default its own."""
        return values(self.codes, self.scales, self.shape[-1], dtype or self.dtype)

    def like(self, codes: Tensor, scales: Tensor, dtype: torch.dtype | None = None) -> "Blocks":
        """Make blocks of the same width from other codes and scales."""
        return Blocks(codes, scales, self.shape[-1], dtype or self.dtype)

    def __tensor_flatten__(self) -> tuple[list[str], tuple[int, torch.dtype]]:
        return ["codes", "scales"], (self.shape[-1], self.dtype)

    @staticmethod
    def __tensor_unflatten__(inner: Mapping[str, Tensor], width_and_dtype: tuple[int, torch.dtype], *_: object) -> "Blocks":
        return Blocks(inner["codes"], inner["scales"], *width_and_dtype)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an op. One that keeps the blocks runs on codes and scales, any other on the values; one that writes is a UseError."""
        how, first = dict(kwargs or {}), args[0] if args else None
        if func in KEPT and isinstance(first, Blocks):
            return first.like(*(func(t, *args[1:], **how) for t in (first.codes, first.scales)))
        if func is aten._to_copy.default and isinstance(first, Blocks):
            dtype, where = how.get("dtype") or first.dtype, how.get("device") or first.device
            return first.like(first.codes.to(where), first.scales.to(where), dtype) if dtype.is_floating_point else first.plain().to(dtype)
        if func is aten.select.int and isinstance(first, Blocks) and args[1] == 0:
            part = first.like(first.codes[args[2]], first.scales[args[2]])
            return part if part.ndim > 1 else part.plain()
        if func is aten.embedding.default and isinstance(first, Blocks):
            return first.like(first.codes[args[1]], first.scales[args[1]]).plain()
        given = zip(func._schema.arguments, args, strict=False), ((spec, how.get(spec.name)) for spec in func._schema.arguments)
        if any(isinstance(a, Blocks) and written(spec) for each in given for spec, a in each):
            raise UseError("blocks.written", op=str(func))
        return func(*(dense(a) for a in args), **{name: dense(a) for name, a in how.items()})


KEPT = (aten.detach.default, aten.clone.default, aten.alias.default)


def written(argument: Any) -> bool:
    """True if an op writes to this argument of its schema."""
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


def dense(x: Any) -> Any:
    """Dequantise blocks, alone or in a list. Anything else is returned as it is."""
    if isinstance(x, list | tuple):
        return type(x)(map(dense, x))
    return x.plain() if isinstance(x, Blocks) else x


def shapes(shape: Sequence[int], form: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of the codes and the scales of a weight [... in] in format `form`."""
    *lead, width = shape
    return (*lead, -(-width * BITS[form] // 8)), (*lead, -(-width // BLOCK))


def allocate(shape: Sequence[int], form: str, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Allocate codes and scales for a weight of this shape, without values."""
    codes, scales = shapes(shape, form)
    kind = torch.int8 if form == "int8" else torch.uint8
    return huge_pages.empty(codes, kind, device), huge_pages.empty(scales, SCALE, device)


def size(shape: Sequence[int], form: str) -> int:
    """Return the bytes of a weight of this shape in format `form`."""
    codes, scales = shapes(shape, form)
    return prod(codes) + prod(scales) * SCALE.itemsize


def quantised(weight: Tensor, form: str, dtype: torch.dtype | None = None) -> Blocks:
    """Quantise weight [... in] to blocks that compute in `dtype`, by default the weight's.

    The scale of a block with a NaN or an infinity is not finite.
    """
    codes, scales = allocate(weight.shape, form, weight.device)
    if weight.device.type != "meta":
        rows = [t.flatten(0, -2) for t in (weight.detach(), codes, scales)]
        for w, c, s in zip(*(t.split(max(1, STRIP // max(1, weight.shape[-1]))) for t in rows), strict=True):
            for target, part in zip((c, s), rounded(w, form), strict=True):
                target.copy_(part)
    return Blocks(codes, scales, weight.shape[-1], dtype or weight.dtype)


def same(a: Blocks, b: Blocks) -> bool:
    """True if codes and scales are equal; on meta, if the shapes are."""
    if a.device.type == "meta" or b.device.type == "meta":
        return a.shape == b.shape
    return torch.equal(a.codes, b.codes) and torch.equal(a.scales, b.scales)


def rounded(rows: Tensor, form: str) -> tuple[Tensor, Tensor]:
    """Round rows [N in] to codes and scales. Equal numbers in different dtypes give the same ones."""
    blocks = filled(rows.to(wide(SCALE)), BLOCK).unflatten(-1, (-1, BLOCK))
    largest = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
    scale = largest.abs() / 127 if form == "int8" else largest / -8
    x = blocks * torch.where(scale == 0, scale, 1 / scale)
    codes = x.add(x.sign() / 2).trunc().clamp(-127, 127) if form == "int8" else (x + 8.5).trunc().clamp(0, 15)
    codes = codes.nan_to_num().flatten(-2)[:, : rows.shape[-1]].to(torch.int8 if form == "int8" else torch.uint8)
    if form == "int4":
        low, high = filled(codes, 2).unflatten(-1, (-1, 2)).unbind(-1)
        codes = low | high << 4
    return codes, scale[..., 0].to(SCALE)


def values(codes: Tensor, scales: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Multiply codes by scales, in `dtype`. Exact in float32, whose 24 bits hold the 8 of a code and the 11 of a scale."""
    out = torch.empty((*codes.shape[:-1], width), dtype=dtype, device=codes.device)
    if out.device.type == "meta" or not out.numel():
        return out
    rows = [t.reshape(-1, t.shape[-1]) for t in (out, codes, scales)]
    for o, c, s in zip(*(t.split(max(1, STRIP // width)) for t in rows), strict=True):
        integers = c if c.dtype is torch.int8 else torch.stack((c & 15, c >> 4), -1).flatten(-2)[:, :width].to(torch.int8) - 8
        blocks = filled(integers.to(wide(dtype)), BLOCK).unflatten(-1, (-1, BLOCK))
        o.copy_((blocks * s.to(blocks.dtype)[..., None]).flatten(-2)[:, :width])
    return out


def filled(rows: Tensor, size: int) -> Tensor:
    """Pad rows [N n] with zeros to a multiple of `size`."""
    return torch.nn.functional.pad(rows, (0, -rows.shape[-1] % size))
