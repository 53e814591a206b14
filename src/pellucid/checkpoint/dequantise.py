"""A folder's quantised tensors as the plain ones they stand for: under the plain tensor's name and in its shape.

FP8 and MXFP4: small_floats.py.  GPTQ, AWQ, compressed-tensors: integer_weights.py.  bitsandbytes: normal_floats.py.
"""

from collections.abc import Mapping

from pellucid.checkpoint import integer_weights, normal_floats, small_floats
from pellucid.checkpoint.packing import Stored, stored
from pellucid.checkpoint.quantised_tensor import Quantised
from pellucid.checkpoint.safetensors_file import Entry
from pellucid.families.quantisation import Awq, BitsAndBytes, CompressedTensors, Fp8, Gptq, InBlocks, Method


def dequantised(entries: Mapping[str, Entry], method: Method | None) -> Mapping[str, Entry | Quantised | Stored]:
    """Return a folder's tensors, quantised ones under their plain names. Checks shapes and dtypes; reads no weight."""
    if method is None:
        return {**entries}
    if isinstance(method, InBlocks):
        return stored(entries)
    tensors, idle = read_by(entries, method)
    used = {part.name for q in tensors for part in q.parts} | idle
    return {**{n: e for n, e in entries.items() if n not in used}, **{q.name: q for q in tensors}}


def read_by(entries: Mapping[str, Entry], method: Method) -> tuple[list[Quantised], set[str]]:
    """Return the quantised tensors of a method, and the names of tensors that say nothing of a weight."""
    if isinstance(method, Fp8):
        return small_floats.fp8(entries, method.block), set()
    if isinstance(method, Gptq):
        return integer_weights.gptq(entries, method), set()
    if isinstance(method, Awq):
        return integer_weights.awq(entries), set()
    if isinstance(method, CompressedTensors):
        return integer_weights.compressed(entries, method)
    return normal_floats.bits_and_bytes(entries) if isinstance(method, BitsAndBytes) else (small_floats.mxfp4(entries), set())
