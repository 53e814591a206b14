"""bitsandbytes' weights: four bits by a table of 16 values (NF4 of arXiv 2305.14314, or FP4) and a scale for each 64 in a row, or int8.

X.weight  U8 [n/2 1]       two values a byte, the high half first
X.weight.quant_map [16]    the table                 X.weight.absmax  F32 [n/64], or U8 if the scales are quantised themselves:
X.weight.nested_absmax, X.weight.nested_quant_map [256], and an offset
X.weight.quant_state.bitsandbytes__nf4  U8           a JSON text: shape, dtype, blocksize, nested_blocksize, nested_offset
X.weight  I8 [out in], X.SCB  F32 [out]              int8: w = q * SCB / 127
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoint.quantised_tensor import Quantised, finite, judge, parts_of
from pellucid.checkpoint.safetensors_file import Entry, read_tensor
from pellucid.errors import CheckpointError
from pellucid.ops.precision import wide

STATES = (".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4")
DTYPES = {"float32": torch.bfloat16, "bfloat16": torch.bfloat16, "float16": torch.float16}  # which a weight stands for, by its state's
STRIP = 1 << 20  # values
LONGEST = 1 << 16  # bytes of a state
LARGEST = 1 << 16  # values of a block; the library writes at most 4096


def bits_and_bytes(entries: Mapping[str, Entry]) -> tuple[list[Quantised], set[str]]:
    """Return every weight in four bits or int8, and the names of tensors that were read already, or say nothing."""
    tensors, idle = list[Quantised](), {n for n in entries if n.endswith(".weight_format")}
    for end in STATES:
        for name in (n.removesuffix(end) for n in sorted(entries) if n.endswith(end)):
            idle.add(name + end)
            tensors.append(four_bits(entries, name, entries[name + end]))
    for name in (n.removesuffix(".SCB") for n in sorted(entries) if n.endswith(".SCB")):
        scales = entries[f"{name}.SCB"]
        (values,) = parts_of(entries, scales.name, f"{name}.weight")
        judge(values, (torch.int8,), len(values.shape) == 2, "[out, in]")
        judge(scales, (torch.float32,), scales.shape == values.shape[:1], values.shape[:1])
        tensors.append(Quantised(f"{name}.weight", values.shape, (values, scales), times_rows, dtype=torch.float16))
    return tensors, idle


def state_of(entry: Entry) -> dict[str, Any]:
    """Return the state of a weight. A CheckpointError if it is no JSON object with a shape, a dtype and block sizes."""
    judge(entry, (torch.uint8,), len(entry.shape) == 1 and 0 < entry.shape[0] <= LONGEST, f"[1 ... {LONGEST}]")
    try:
        state = json.loads(read_tensor(entry).numpy().tobytes())
        shape, dtype, block = state["shape"], state["dtype"], state["blocksize"]
        sound = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape) and dtype in DTYPES
        nested = state.get("nested_blocksize", 1), state.get("nested_offset", 0.0)
        sound = sound and all(type(n) is int and 0 < n <= LARGEST for n in (block, nested[0])) and isinstance(nested[1], float | int)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        sound = False
    if not sound:
        raise CheckpointError("quantised.state", file=entry.file, name=entry.name)
    return dict(state)


def four_bits(entries: Mapping[str, Entry], name: str, stated: Entry) -> Quantised:
    """Return a weight of four bits, whose state is the tensor `stated`."""
    state = state_of(stated)
    values, scales, table = parts_of(entries, stated.name, name, f"{name}.absmax", f"{name}.quant_map")
    shape, block = tuple(state["shape"]), state["blocksize"]
    count = -(-prod(shape) // block)
    judge(values, (torch.uint8,), prod(values.shape) == -(-prod(shape) // 2), f"[{-(-prod(shape) // 2)}, 1]")
    judge(table, (torch.float32,), table.shape == (16,), (16,))
    judge(scales, (torch.uint8, torch.float32), scales.shape == (count,), (count,))
    parts: tuple[Entry, ...] = (values, table, scales)
    if scales.dtype == torch.uint8:
        factors, levels = parts_of(entries, scales.name, f"{name}.nested_absmax", f"{name}.nested_quant_map")
        nested = -(-count // state.get("nested_blocksize", 1))
        judge(factors, (torch.float32,), factors.shape == (nested,), (nested,))
        judge(levels, (torch.float32,), levels.shape == (256,), (256,))
        parts = (*parts, factors, levels)
    multiply = partial(times_table, block, state.get("nested_blocksize", 1), float(state.get("nested_offset", 0.0)))
    return Quantised(name, shape, parts, multiply, dtype=DTYPES[state["dtype"]])


def times_table(block: int, nested: int, offset: float, parts: Sequence[Entry], into: Tensor) -> None:
    """Dequantise four bits into `into`, a strip of blocks at a time."""
    values, table, scales, *rest = parts
    kind, levels, each = wide(into.dtype), read_tensor(table), read_tensor(scales)
    if rest:
        factors, steps = map(read_tensor, rest)
        each = steps[each.int()] * factors.repeat_interleave(nested)[: len(each)] + offset
    each, levels, words = finite(each, scales).to(kind), finite(levels, table).to(kind), read_tensor(values).flatten()
    plain = into if into.is_contiguous() else torch.empty(into.shape, dtype=into.dtype)
    flat, size = plain.view(-1), max(2 * block, STRIP // (2 * block) * (2 * block))
    for at in range(0, len(flat), size):
        some = words[at // 2 : (at + size) // 2].int()
        both = levels[torch.stack([some >> 4, some & 15], -1).flatten()][: len(flat) - at]
        flat[at : at + size] = both * each[at // block : (at + size) // block].repeat_interleave(block)[: len(both)]
    if plain is not into:
        into.copy_(plain)


def times_rows(parts: Sequence[Entry], into: Tensor) -> None:
    """Dequantise int8 into `into`."""
    (values, scales), kind = parts, wide(into.dtype)
    into[:] = read_tensor(values).to(kind) * (finite(read_tensor(scales), scales).to(kind) / 127)[:, None]
