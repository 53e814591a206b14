"""`convert`: a model from one format to another, GGUF or a Hugging Face folder, with nothing lost on the way.

convert("model.gguf", "folder", to="safetensors")
convert("folder", "model.gguf", quant="q8_0")
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import torch
from torch import nn

from pellucid.api.model import Model, load, place
from pellucid.checkpoint.folder import Folder
from pellucid.checkpoint.gguf.gguf_folder import GgufFolder, folder_of
from pellucid.checkpoint.gguf.gguf_writer import write_gguf
from pellucid.checkpoint.gguf.packed_tensor import PackedTensor
from pellucid.checkpoint.gguf.written_model import KINDS, architecture, described, written_model
from pellucid.checkpoint.gguf.written_tokenizer import tokenizer_keys_of
from pellucid.errors import UseError
from pellucid.ops.blocks import Blocks

FORMATS = ("gguf", "safetensors")
PLAIN = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
HALVES = {torch.float16, torch.bfloat16}
MOST = 1 << 20
"""Numbers of a tensor in float32 that are compared with their halves: a norm's, a bias's or a router's; a larger one is a matrix."""


@dataclass(frozen=True)
class Converted:
    """A model that was written. tensors, bytes: of its weights' files."""

    model: str
    path: Path
    tensors: int
    bytes: int


def convert(
    name: str | Path,
    out: str | Path,
    to: str = "gguf",
    quant: str | None = None,
    ignore_fields: Iterable[str] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Converted:
    """Write the model of a name as a GGUF file that llama.cpp reads, or as a Hugging Face folder.

    quant: "f32", "f16" or "bf16", or in GGUF "q8_0" or "q4_0" for its matrices; None keeps what is stored.  out: must not exist.
    """
    allowed = KINDS if to == "gguf" else PLAIN
    if to not in FORMATS:
        raise UseError("convert.to", found=to, allowed=", ".join(FORMATS))
    if quant is not None and quant not in allowed:
        raise UseError("convert.quant", found=quant, to=to, allowed=", ".join(allowed))
    path = Path(out)
    if path.exists() and not (to == "safetensors" and path.is_dir() and not any(path.iterdir())):
        raise UseError("convert.exists", path=path)
    folder = folder_of(place(name), ignore_fields)
    model = load(name, dtype=lossless(folder), ignore_fields=ignore_fields, progress=progress)
    if to == "safetensors":
        unblock(model.module)
        model = model if quant is None else model.to(dtype=PLAIN[quant])
        model.save(path)
        return Converted(str(name), path, len(model.tensors()), sum(f.stat().st_size for f in path.glob("*.safetensors")))
    own, tensors = written_model(model.module, model.family.name, model.config, quant or "")
    words = tokenizer_keys_of(model._tokenizer, model.config.vocab, model.stops)
    keys = {"general.architecture": architecture(model.family.name), **described(path_of(model), quant or ""), **own, **words}
    write_gguf(path, keys, tensors)
    return Converted(str(name), path, len(tensors), path.stat().st_size)


def lossless(folder: Folder | GgufFolder) -> torch.dtype | None:
    """Return the narrowest dtype that has every number of a folder as it is stored; None if it stores none.

    llama.cpp writes the norms of a model in bf16 as F32. Where half precision has each of these numbers, the model stays in it.
    """
    stored = [e for e in folder.entries.values() if e.dtype.is_floating_point]
    dtypes = {torch.float32 if isinstance(e, PackedTensor) else e.dtype for e in stored}
    if len(halves := dtypes & HALVES) == 1 and dtypes - halves == {torch.float32}:
        half, wide = *halves, [e for e in stored if e.dtype == torch.float32]
        if all(math.prod(e.shape) <= MOST and torch.equal(x := e.read(), x.to(half).to(x.dtype)) for e in wide):
            return half
    return reduce(torch.promote_types, dtypes, torch.bfloat16) if dtypes else None


def path_of(model: Model) -> Path:
    """Return the path or id after which a model is named."""
    return Path(model.name)


def unblock(module: nn.Module) -> None:
    """Dequantise every parameter in blocks, in its dtype; tied ones stay one."""
    plain: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, p in part._parameters.items():
            if isinstance(p, Blocks):
                if id(p) not in plain:
                    plain[id(p)] = nn.Parameter(p.plain(), requires_grad=False)
                part._parameters[name] = plain[id(p)]
