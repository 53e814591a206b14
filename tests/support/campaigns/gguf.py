"""Mutants of a small GGUF file: its counts, lengths, kinds and offsets, its bytes, and its keys and tensors one by one."""

import random
import struct
from pathlib import Path
from typing import Any

from campaigns import Attempt, named
from campaigns.mutate import EVIL, mangled
from pellucid.api.model import load
from pellucid.checkpoint.gguf.gguf_folder import GgufFolder
from pellucid.checkpoint.gguf.gguf_writer import kept, text
from pellucid.checkpoint.gguf.tokenizer_keys import spec

WIDTH, ROWS = 32, 40
TOKENS = ["<s>", "</s>", "\u0120", *"abcdefghijklmnopqrstuvwxyz", "ab", "\u0120a"]
KEYS: dict[str, Any] = {
    "general.architecture": "llama", "general.alignment": 32, "llama.context_length": 64, "llama.embedding_length": WIDTH,
    "llama.block_count": 1, "llama.feed_forward_length": 32, "llama.attention.head_count": 2, "llama.attention.head_count_kv": 1,
    "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.dimension_count": 16, "llama.rope.freq_base": 10000.0,
    "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3, 3, *[1] * (len(TOKENS) - 2)], "tokenizer.ggml.merges": ["a b", "\u0120 a"],
    "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.add_bos_token": True,
}  # fmt: skip
SIZES = {"q": WIDTH, "k": 16, "v": 16, "output": WIDTH}
TENSORS: dict[str, tuple[int, tuple[int, ...]]] = {  # the type and the shape, the fastest axis first
    "token_embd.weight": (0, (WIDTH, ROWS)), "output_norm.weight": (0, (WIDTH,)), "output.weight": (8, (WIDTH, ROWS)),
    **{f"blk.0.attn_{n}.weight": (2, (WIDTH, rows)) for n, rows in SIZES.items()},
    "blk.0.attn_norm.weight": (0, (WIDTH,)), "blk.0.ffn_norm.weight": (0, (WIDTH,)),
    **{f"blk.0.ffn_{n}.weight": (1, (WIDTH, 32)) for n in ("gate", "up", "down")}, "rope_freqs.weight": (0, (8,)),
}  # fmt: skip
BYTES = {0: (1, 4), 1: (1, 2), 2: (32, 18), 8: (32, 34)}
NUMBERS = (0, 1, 7, 31, 33, 2**16, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1)


def length(kind: int, shape: tuple[int, ...]) -> int:
    """Return the bytes of a tensor, 0 for a type that is not in this file."""
    block, size = BYTES.get(kind, (1, 0))
    count = 1
    for n in shape:
        count *= n
    return min(count // block * size, 1 << 16)


def file_bytes(keys: list[bytes], tensors: list[tuple[str, int, tuple[int, ...], int]], data: bytes) -> bytes:
    """Return a file of these keys, and of tensors with their types, shapes and offsets."""
    raw = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys)
    for name, kind, shape, offset in tensors:
        sizes = struct.pack(f"<{len(shape)}Q", *(n % 2**64 for n in shape))
        raw += text(name) + struct.pack("<I", len(shape)) + sizes + struct.pack("<IQ", kind % 2**32, offset % 2**64)
    return raw + bytes(-len(raw) % 32) + data


def with_offsets(tensors: dict[str, tuple[int, tuple[int, ...]]]) -> tuple[list[tuple[str, int, tuple[int, ...], int]], bytes]:
    """Return tensors with their offsets, and bytes for them: ones in float16 are small numbers in every type."""
    entries, data = [], b""
    for name, (kind, shape) in tensors.items():
        entries.append((name, kind, shape, len(data)))
        data += b"\x00\x3c" * (length(kind, shape) // 2)
        data += bytes(-len(data) % 32)
    return entries, data


def changed(value: Any, draw: random.Random) -> Any:
    """Return another value for a key, of the same kind or not."""
    if isinstance(value, list) and draw.random() < 0.6:
        out = list(value)
        match draw.randrange(4):
            case 0:
                out = out[: draw.randrange(len(out)) or 1]
            case 1:
                out += out[:1]
            case 2:
                out[draw.randrange(len(out))] = draw.choice(out)
            case _:
                out[draw.randrange(len(out))] = "\u202e<x>\n" if isinstance(out[0], str) else draw.choice((0, -1, 2, 3, 4, 5, 6, 99))
        return out
    if type(value) is int and draw.random() < 0.7:
        return draw.choice([n for n in NUMBERS if n < 2**32])
    fit = [v for v in EVIL if isinstance(v, bool | str | float) or (type(v) is int and 0 <= v < 2**32)]
    return draw.choice([v for v in fit if not isinstance(v, str) or v.isprintable() or "\ud800" not in v])


def prepare(folder: Path) -> Attempt:
    file = folder / "model.gguf"
    entries, data = with_offsets(TENSORS)
    good = file_bytes([text(k) + kept(v) for k, v in KEYS.items()], entries, data)
    start = good.index(b"output_norm.weight") - 100

    def attempt(draw: random.Random) -> str:
        keys, tensors, rest = dict(KEYS), dict(TENSORS), data
        match draw.randrange(6):
            case 0:
                raw = mangled(good, draw)
            case 1:  # a number of eight or four bytes anywhere in the header
                at, size = draw.randrange(4, start + 900), draw.choice((4, 8))
                raw = good[:at] + (draw.choice(NUMBERS) % 2 ** (8 * size)).to_bytes(size, "little") + good[at + size :]
            case 2:
                name = draw.choice(list(keys))
                keys[name] = changed(keys[name], draw)
                raw = written(keys, entries, rest)
            case 3:
                name = draw.choice(list(keys))
                value = keys.pop(name)
                if draw.random() < 0.5:
                    keys[draw.choice((name + "_", "llama.x", "", "tokenizer.chat_template", name.upper(), "\x1b[31m"))] = value
                raw = written(keys, entries, rest)
            case 4:
                name = draw.choice(list(tensors))
                kind, shape = tensors[name]
                shape = draw.choice(((*shape, 1), shape[::-1], shape[:-1], tuple(draw.choice(NUMBERS) for _ in shape), (0, *shape[1:])))
                tensors[name] = (draw.choice((kind, kind, *BYTES, 12, 39, 99)), shape)
                others, rest = with_offsets(tensors)
                raw = written(keys, others, rest)
            case _:
                others = [list(t) for t in entries]
                one = draw.choice(others)
                one[3] += draw.choice((1, 32, -32, 2**63, *NUMBERS))
                if draw.random() < 0.3:
                    one[0] = draw.choice(others)[0]
                raw = written(keys, [tuple(t) for t in others], rest[: draw.choice((len(rest), draw.randrange(len(rest))))])
        file.write_bytes(raw)
        runs = draw.random() < 0.2  # a model and its tokenizer cost more than all the rest

        def work() -> None:
            folder = GgufFolder(file)
            for entry in folder.entries.values():
                entry.read()
            assert folder.config
            spec(folder.keys, str(file), folder.architecture)
            if runs:
                load(file)

        return named(work, file.name)

    return attempt


def written(keys: dict[str, Any], tensors: Any, data: bytes) -> bytes:
    """Return the file of these keys; what no key can hold is left out."""
    raw = []
    for name, value in keys.items():
        try:
            raw.append(text(name) + kept(value))
        except (struct.error, UnicodeEncodeError, OverflowError, TypeError, ValueError):
            continue
    return file_bytes(raw, tensors, data)
