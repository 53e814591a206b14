"""Mutants of a small safetensors file: its length, its header's JSON, its bytes."""

import random
import struct
from pathlib import Path

import torch

from campaigns import Attempt, named
from campaigns.mutate import bent, mangled, text
from pellucid.checkpoint.safetensors_file import read_header, read_tensor

TREE = {
    "__metadata__": {"format": "pt"},
    "a.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b.bias": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
    "c": {"dtype": "I64", "shape": [], "data_offsets": [32, 40]},
    "d": {"dtype": "BOOL", "shape": [2, 0], "data_offsets": [40, 40]},
    "e": {"dtype": "F8_E4M3", "shape": [3, 1], "data_offsets": [40, 43]},
}
DATA = bytes(range(43))


def file_bytes(header: bytes, data: bytes = DATA) -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def prepare(folder: Path) -> Attempt:
    file = folder / "model.safetensors"
    good = file_bytes(text(TREE))

    def attempt(draw: random.Random) -> str:
        match draw.randrange(4):
            case 0:
                raw = mangled(good, draw)
            case 1:
                raw = file_bytes(mangled(text(TREE), draw))
            case 2:
                header = text(bent(TREE, draw))
                raw = file_bytes(header) if draw.random() < 0.9 else file_bytes(header, DATA[: draw.randrange(43)])
            case _:
                header = text(TREE)
                raw = (
                    struct.pack("<Q", draw.choice((0, 1, 7, len(header) - 1, len(header) + 1, 2**63, 2**64 - 1, 10**8 + 1))) + header + DATA
                )
        file.write_bytes(raw)

        def load() -> None:
            for entry in read_header(file).values():
                assert isinstance(read_tensor(entry), torch.Tensor)

        return named(load, file.name)

    return attempt
