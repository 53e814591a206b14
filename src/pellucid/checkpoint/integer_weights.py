"""Weights in integers of a few bits with a scale, and mostly a zero point, for each group of inputs: w = (q - z) * s.

    GPTQ                 X.qweight  I32 [in/8 out]     X.qzeros  I32 [groups out/8]    X.scales [groups out]     X.g_idx  I32 [in]
    AWQ                  X.qweight  I32 [in out/8]     X.qzeros  I32 [groups out/8]    X.scales [groups out]
    compressed-tensors   X.weight_packed  I32 [out in/8], X.weight_zero_point  I32 [out/8 groups], and X.weight_scale, X.weight_g_idx
                         X.weight  I8 or F8 [out in], X.weight_scale [out groups], [out 1], [1] or a grid of blocks
                         X.weight_packed  U8 [out in/2] of float4, X.weight_scale  F8 [out in/16], X.weight_global_scale  (NVFP4)
                         X.weight_packed  U8 [out in/2] of float4, X.weight_scale  U8 [out in/32], powers of two  (MXFP4)

The 8 is that of four bits. A word holds its values from the low bits up; AWQ's holds columns 0 2 4 6 1 3 5 7. A weight is read under its
plain name, X.weight [out in], a strip of inputs or rows at a time.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from pellucid.checkpoint.quantised_tensor import Quantised, finite, judge, parts_of
from pellucid.checkpoint.safetensors_file import Entry, read_tensor
from pellucid.checkpoint.small_floats import E2M1, E8M0, times_grid
from pellucid.errors import CheckpointError
from pellucid.families.quantisation import CompressedTensors, Gptq
from pellucid.ops.precision import wide

WORD = 32  # bits
PLAIN = (torch.float16, torch.bfloat16, torch.float32)
INTERLEAVED = (0, 4, 1, 5, 2, 6, 3, 7)  # where AWQ keeps each of eight columns in a word
STRIP = 512  # inputs or rows
IDLE = ("input_scale", "input_zero_point", "input_global_scale", "input_g_idx", "k_scale", "v_scale", "q_scale")  # of activations


def unpacked(words: Tensor, bits: int) -> Tensor:
    """Return the unsigned values of words [...] as [... 32/bits], the low bits first."""
    shifts = torch.arange(0, WORD, bits, dtype=torch.int32)
    return (words[..., None] >> shifts) & ((1 << bits) - 1)


def stem(entries: Mapping[str, Entry], end: str) -> list[str]:
    """Return the names before this end, sorted."""
    return sorted(n.removesuffix(end) for n in entries if n.endswith(end))


def in_groups(inputs: int, groups: int) -> bool:
    """True if inputs can be in this number of groups of one size."""
    return 0 < groups <= inputs and inputs % groups == 0


def stands_for(scales: Entry) -> torch.dtype:
    """Return the dtype of a weight: its scales' own, but bfloat16 for wider and for float8 ones."""
    return scales.dtype if scales.dtype == torch.float16 else torch.bfloat16


def gptq(entries: Mapping[str, Entry], method: Gptq) -> list[Quantised]:
    """Return every weight of GPTQ. Inputs may have their groups in any order, by `g_idx`."""
    tensors, pack = list[Quantised](), WORD // method.bits
    for name in stem(entries, ".qweight"):
        values = entries[f"{name}.qweight"]
        scales, zeros = parts_of(entries, values.name, f"{name}.scales", f"{name}.qzeros")
        order = [entries[n] for n in (f"{name}.g_idx",) if n in entries]
        judge(values, (torch.int32,), len(values.shape) == 2, f"[in / {pack}, out]")
        rows, out = values.shape[0] * pack, values.shape[1]
        fits = len(scales.shape) == 2 and scales.shape[1] == out
        fits = fits and (0 < scales.shape[0] <= rows if order else in_groups(rows, scales.shape[0]))
        judge(scales, PLAIN, fits, f"[groups, {out}]")
        judge(zeros, (torch.int32,), zeros.shape == (scales.shape[0], -(-out // pack)), (scales.shape[0], -(-out // pack)))
        for entry in order:
            judge(entry, (torch.int32, torch.int64), entry.shape == (rows,), (rows,))
        parts, multiply = (values, scales, zeros, *order), partial(times_columns, method)
        tensors.append(Quantised(f"{name}.weight", (out, rows), parts, multiply, dtype=stands_for(scales)))
    return tensors


def times_columns(method: Gptq, parts: Sequence[Entry], into: Tensor) -> None:
    """Dequantise GPTQ into `into`, a strip of inputs at a time."""
    values, scales, zeros, *order = parts
    kind, pack, (out, rows) = wide(into.dtype), WORD // method.bits, into.shape
    s = finite(read_tensor(scales), scales).to(kind)
    z = unpacked(read_tensor(zeros), method.bits).flatten(1)[:, :out] + method.shift
    group = group_of(order[0], rows, len(s)) if order else torch.arange(rows) // (rows // len(s))
    words, strip = read_tensor(values), max(1, STRIP // pack)
    for at in range(0, len(words), strip):
        q = unpacked(words[at : at + strip], method.bits).mT.flatten(0, 1)  # inputs, out
        own = group[at * pack : at * pack + len(q)]
        into.mT[at * pack : at * pack + len(q)] = (q - z[own]).to(kind) * s[own]


def group_of(entry: Entry, rows: int, groups: int) -> Tensor:
    """Return the group of each input. A CheckpointError for one that there is not."""
    order = read_tensor(entry).long()
    if rows and not 0 <= int(order.min()) <= int(order.max()) < groups:
        raise CheckpointError("quantised.group", file=entry.file, name=entry.name, found=int(order.max()), most=groups - 1)
    return order


def awq(entries: Mapping[str, Entry]) -> list[Quantised]:
    """Return every weight of AWQ."""
    tensors = list[Quantised]()
    for name in stem(entries, ".qweight"):
        values = entries[f"{name}.qweight"]
        scales, zeros = parts_of(entries, values.name, f"{name}.scales", f"{name}.qzeros")
        judge(values, (torch.int32,), len(values.shape) == 2, "[in, out / 8]")
        rows, out = values.shape[0], values.shape[1] * 8
        fits = len(scales.shape) == 2 and scales.shape[1] == out and in_groups(rows, scales.shape[0])
        judge(scales, PLAIN, fits, f"[groups, {out}]")
        judge(zeros, (torch.int32,), zeros.shape == (scales.shape[0], values.shape[1]), (scales.shape[0], values.shape[1]))
        tensors.append(Quantised(f"{name}.weight", (out, rows), (values, scales, zeros), times_interleaved, dtype=stands_for(scales)))
    return tensors


def times_interleaved(parts: Sequence[Entry], into: Tensor) -> None:
    """Dequantise AWQ into `into`, a strip of inputs at a time."""

    def columns(words: Tensor) -> Tensor:
        return unpacked(words, 4)[..., INTERLEAVED].flatten(1)

    (values, scales, zeros), kind, rows = parts, wide(into.dtype), into.shape[1]
    s, z = finite(read_tensor(scales), scales).to(kind), columns(read_tensor(zeros))
    group = torch.arange(rows) // (rows // len(s))
    for at in range(0, rows, STRIP):
        q, own = columns(read_tensor(values, rows=(at, min(at + STRIP, rows)))), group[at : at + STRIP]
        into.mT[at : at + STRIP] = (q - z[own]).to(kind) * s[own]


def compressed(entries: Mapping[str, Entry], method: CompressedTensors) -> tuple[list[Quantised], set[str]]:
    """Return every weight of compressed-tensors, and the names of scales of activations, which stay plain here."""
    tensors = [*packed_floats(entries), *packed_integers(entries, method.bits), *whole_bytes(entries, method.block)]
    used = {f"{name}.weight_shape" for name in stem(entries, ".weight_shape")}
    return tensors, used | {n for n in entries if n.rpartition(".")[2] in IDLE}


def packed_floats(entries: Mapping[str, Entry]) -> list[Quantised]:
    """Return every weight in NVFP4, and in MXFP4, which has powers of two as scales and no factor of a tensor."""
    tensors = list[Quantised]()
    powers = {n for n in stem(entries, ".weight_packed") if entries[f"{n}.weight_packed"].dtype == torch.uint8}
    for name in sorted(powers | {*stem(entries, ".weight_global_scale")}):
        factor = entries.get(f"{name}.weight_global_scale")
        known = f"{name}.weight_packed" if factor is None else factor.name
        values, scales = parts_of(entries, known, f"{name}.weight_packed", f"{name}.weight_scale")
        judge(values, (torch.uint8,), len(values.shape) == 2, "[out, in / 2]")
        out, columns, group = values.shape[0], 2 * values.shape[1], 16 if factor else 32
        kinds = (torch.float8_e4m3fn,) if factor else (torch.uint8,)
        judge(scales, kinds, scales.shape == (out, columns // group) and columns % group == 0, (out, columns // group))
        if factor is not None:
            judge(factor, (torch.float32,), factor.shape in ((1,), ()), (1,))
        parts = (values, scales) if factor is None else (values, scales, factor)
        tensors.append(Quantised(f"{name}.weight", (out, columns), parts, times_groups))
    return tensors


def times_groups(parts: Sequence[Entry], into: Tensor) -> None:
    """Dequantise NVFP4 or MXFP4 into `into`: float4 times the scale of its group, divided by the tensor's own factor if it has one."""
    (values, scales, *factor), kind = parts, wide(into.dtype)
    table, powers = torch.tensor(E2M1, dtype=kind), torch.tensor(E8M0, dtype=kind)
    one = finite(read_tensor(factor[0]), factor[0]).to(kind) if factor else torch.ones((), dtype=kind)
    for at in range(0, len(into), STRIP):
        rows = (at, min(at + STRIP, len(into)))
        words, own = read_tensor(values, rows=rows).int(), read_tensor(scales, rows=rows)
        scale = finite(own.to(kind) if factor else powers[own.int()], scales) / one
        both = torch.stack([table[words & 15], table[words >> 4]], -1).flatten(1)
        into[at : at + STRIP] = both * scale.repeat_interleave(both.shape[1] // scale.shape[1], -1)


def packed_integers(entries: Mapping[str, Entry], bits: tuple[int, ...]) -> list[Quantised]:
    """Return every weight in packed integers. Which of `bits` it has, its shape says."""
    tensors = list[Quantised]()
    for name in stem(entries, ".weight_shape"):
        shape = entries[f"{name}.weight_shape"]
        values, scales = parts_of(entries, shape.name, f"{name}.weight_packed", f"{name}.weight_scale")
        judge(shape, (torch.int64, torch.int32), shape.shape == (2,), (2,))
        out, columns = read_tensor(shape).tolist()
        own = [n for n in bits if values.shape == (out, -(-columns // (WORD // n)))]
        judge(values, (torch.int32,), len(own) == 1, f"[{out}, {columns} * {', '.join(map(str, bits))} / {WORD}]")
        judge(scales, PLAIN, len(scales.shape) == 2 and scales.shape[0] == out and in_groups(columns, scales.shape[1]), f"[{out}, groups]")
        parts, pack = [values, scales], WORD // own[0]
        if (zeros := entries.get(f"{name}.weight_zero_point")) is not None:
            judge(zeros, (torch.int32,), zeros.shape == (-(-out // pack), scales.shape[1]), (-(-out // pack), scales.shape[1]))
            parts.append(zeros)
        if (order := entries.get(f"{name}.weight_g_idx")) is not None:
            judge(order, (torch.int32, torch.int64), order.shape == (columns,), (columns,))
            parts.append(order)
        multiply = partial(times_rows, own[0])
        tensors.append(Quantised(f"{name}.weight", (out, columns), tuple(parts), multiply, dtype=stands_for(scales)))
    return tensors


def times_rows(bits: int, parts: Sequence[Entry], into: Tensor) -> None:
    """Dequantise packed integers into `into`, a strip of rows at a time. Behind values and scales may come zero points and an order."""
    values, scales, *rest = parts
    by_end = {entry.name.rpartition(".")[2]: entry for entry in rest}
    kind, (out, columns) = wide(into.dtype), into.shape
    s = finite(read_tensor(scales), scales).to(kind)
    z = torch.full((), 1 << (bits - 1), dtype=torch.int32).expand_as(s)
    if (zeros := by_end.get("weight_zero_point")) is not None:
        z = unpacked_rows(read_tensor(zeros), bits)[:out]
    group = torch.arange(columns) // (columns // s.shape[1])
    if (order := by_end.get("weight_g_idx")) is not None:
        group = group_of(order, columns, s.shape[1])
    for at in range(0, out, STRIP):
        words = read_tensor(values, rows=(at, min(at + STRIP, out)))
        q = unpacked(words, bits).flatten(1)[:, :columns]
        into[at : at + STRIP] = (q - z[at : at + STRIP][:, group]).to(kind) * s[at : at + STRIP][:, group]


def unpacked_rows(words: Tensor, bits: int) -> Tensor:
    """Return the unsigned values of words [n groups] that are packed along their first axis, [n*32/bits groups]."""
    return unpacked(words, bits).permute(0, 2, 1).flatten(0, 1)


def whole_bytes(entries: Mapping[str, Entry], block: tuple[int, int] | None) -> list[Quantised]:
    """Return every weight of a byte a value, int8 or float8."""
    tensors = list[Quantised]()
    for name in stem(entries, ".weight_scale"):
        values, scales = entries.get(f"{name}.weight"), entries[f"{name}.weight_scale"]
        if values is None or values.dtype not in (torch.int8, torch.float8_e4m3fn):
            continue
        judge(values, (values.dtype,), len(values.shape) == 2, "[out, in]")
        out, columns = values.shape
        parts: tuple[Entry, ...] = (values, scales)
        if block is not None and values.dtype == torch.float8_e4m3fn:
            grid = tuple(-(-n // b) for n, b in zip(values.shape, block, strict=True))
            judge(scales, PLAIN, scales.shape == grid, grid)
            multiply: Callable[[Sequence[Entry], Tensor], None] = partial(times_grid, block)
        else:
            judge(scales, PLAIN, fits_bytes(scales.shape, out, columns), f"[{out}, groups], [1]")
            multiply = times_bytes
            if (zeros := entries.get(f"{name}.weight_zero_point")) is not None:
                judge(zeros, (values.dtype,), zeros.shape == scales.shape, scales.shape)
                parts = (*parts, zeros)
        tensors.append(Quantised(f"{name}.weight", values.shape, parts, multiply, dtype=stands_for(scales)))
    return tensors


def fits_bytes(shape: tuple[int, ...], out: int, columns: int) -> bool:
    """True if scales of this shape are one a tensor, or for each row one a group of columns."""
    if shape in ((), (1,)):
        return True
    return len(shape) == 2 and shape[0] == out and in_groups(columns, shape[1])


def times_bytes(parts: Sequence[Entry], into: Tensor) -> None:
    """Dequantise bytes into `into`, a strip of rows at a time. The third part, if there is one, are zero points."""
    values, *per_group = parts
    kind, (out, columns) = wide(into.dtype), into.shape

    def spread(entry: Entry) -> Tensor:
        """Return one number a group as [out or 1, columns], without a copy where each row has one."""
        t = finite(read_tensor(entry).to(kind), entry)
        t = t if t.ndim == 2 else t.reshape(1, 1)
        return t[..., None].expand(-1, -1, columns // t.shape[1]).flatten(1).expand(out, -1)

    s, *zeros = map(spread, per_group)
    for at in range(0, out, STRIP):
        q = read_tensor(values, rows=(at, min(at + STRIP, out))).to(kind)
        for z in zeros:
            q -= z[at : at + STRIP]
        into[at : at + STRIP] = q * s[at : at + STRIP]
