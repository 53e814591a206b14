"""Sparse coders on disk: W_enc [D F], b_enc [F], W_dec [F D], b_dec [D], threshold [F], as sparse autoencoders are published."""

from pathlib import Path

import torch

from pellucid.checkpoint.safetensors_file import read_header, read_tensor
from pellucid.errors import CheckpointError
from pellucid.nn.sparse_coder import SparseCoder

NAMES = ("W_enc", "b_enc", "W_dec", "b_dec", "threshold")
NEEDED = NAMES[:4]


def load_coder(folder: str | Path, error: bool = True) -> SparseCoder:
    """Read a coder from the safetensors files of a folder, or from one. Without a threshold it is 0.

    error: see SparseCoder.  A CheckpointError for a tensor that is missing or has another shape.
    """
    files = sorted(Path(folder).glob("*.safetensors")) if Path(folder).is_dir() else [Path(folder)]
    entries = {name: entry for file in files for name, entry in read_header(file).items()}
    if lacking := [name for name in NEEDED if name not in entries]:
        raise CheckpointError("coder.missing", folder=folder, names=", ".join(lacking), found=", ".join(entries) or "-")
    w = {name: read_tensor(entries[name]) for name in NAMES if name in entries}
    width, features = w["W_enc"].shape if w["W_enc"].ndim == 2 else (0, 0)
    shapes = {"W_enc": (width, features), "b_enc": (features,), "W_dec": (features, width), "b_dec": (width,), "threshold": (features,)}
    for name, x in w.items():
        if tuple(x.shape) != shapes[name] or not x.numel():
            raise CheckpointError("coder.shape", folder=folder, name=name, found=tuple(x.shape), allowed=shapes[name])
    coder = SparseCoder(width, features, error).to(w["W_enc"].dtype)
    with torch.no_grad():
        coder.encode.weight.copy_(w["W_enc"].T)
        coder.encode.bias.copy_(w["b_enc"])
        coder.decode.weight.copy_(w["W_dec"].T)
        coder.decode.bias.copy_(w["b_dec"])
        coder.threshold.copy_(w.get("threshold", torch.zeros(features)))
    return coder
