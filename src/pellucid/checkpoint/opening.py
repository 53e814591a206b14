"""A model's module from a name: its folder found or fetched, its config understood, its weights read into the module."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pellucid.checkpoint.default_dtype import Precision, precision
from pellucid.checkpoint.disk import require_memory
from pellucid.checkpoint.fill import fill
from pellucid.checkpoint.folder import GGUF, Folder, refuse_file
from pellucid.checkpoint.gguf.gguf_folder import GgufFolder, folder_of
from pellucid.checkpoint.hub import fetch, is_hub_id
from pellucid.checkpoint.tied import resolve, saved_config
from pellucid.config import Config
from pellucid.errors import UseError
from pellucid.families import understand
from pellucid.families.family import Family
from pellucid.nn.transformer import Decoder, EncoderDecoder, build, cast, retie
from pellucid.watching.meta import META

SPECIMENS = Path(__file__).parents[1] / "specimens"


@dataclass(frozen=True)
class OpenedModule:
    """A module with its weights. hf: the fields of its config.json.  left: tensors of the folder that carry nothing for it."""

    module: Decoder | EncoderDecoder
    family: Family
    hf: Mapping[str, Any]
    folder: Folder | GgufFolder
    precision: Precision
    left: tuple[str, ...]


def open_module(
    path: Path,
    judge: Callable[[Config, Folder | GgufFolder], None],
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "cpu",
    quant: str | None = None,
    ignore_fields: Iterable[str] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> OpenedModule:
    """Return the module of a folder; the arguments are those of `load`. judge: refuses a config that the weights cannot be of."""
    folder = folder_of(path, ignore_fields)
    kind, cfg = understand(folder.config, folder.file, ignore_fields)
    judge(cfg := resolve(folder.family(kind), cfg, folder), folder)
    with META:
        module = build(cfg)
    chosen = precision(dtype, folder.stored, sum(p.numel() for p in module.parameters()), str(device))
    wanted = chosen.dtype
    packing = folder.packing(quant, wanted, cfg)
    chosen = replace(chosen, formats=folder.formats, matrices=None if packing is None else packing.form)
    left: tuple[str, ...] = ()
    if str(device) == "meta":
        cast(module, wanted)
        if packing is not None:
            packing.pack(module, [n for n, _ in module.named_parameters()], str(folder.path))
            retie(module)
    else:
        plain = sum(p.numel() for p in module.parameters()) * wanted.itemsize
        require_memory(plain if packing is None else packing.bytes(module), folder.path)
        left = fill(module, folder.family(kind), folder, str(folder.path), wanted, progress, packing)
        module.to(device)
    return OpenedModule(module.eval(), kind, saved_config(folder.config, cfg, kind), folder, chosen, left)


def place(name: str | Path, progress: Callable[[int, int], None] = lambda done, total: None) -> Path:
    """Return the folder of a name, fetched if it is a hub id, or a GGUF file."""
    text = str(name) or "''"
    if text.startswith("pellucid/"):
        specimen = SPECIMENS / text.removeprefix("pellucid/")
        if specimen.parent != SPECIMENS or not specimen.is_dir():
            raise UseError("model.specimen", name=text, known=", ".join([*specimens(), *recorded_runs()]))
        return recorded_runs()[text] / "model" if text in recorded_runs() else specimen
    if Path(text).is_dir() or (text.endswith(GGUF) and Path(text).exists()):
        return Path(text)
    refuse_file(text)
    if is_hub_id(text):
        return fetch(text, progress)
    raise UseError("model.unknown", name=text, known=", ".join(specimens()))


def specimens() -> list[str]:
    """Return the names of the models that ship with the package."""
    return sorted(f"pellucid/{p.name}" for p in SPECIMENS.iterdir() if (p / "config.json").is_file())


def recorded_runs() -> dict[str, Path]:
    """Return the folders of the runs of training that ship, by their names. Such a name is also a model: what the run made."""
    return {f"pellucid/{p.name}": p for p in sorted(SPECIMENS.iterdir()) if (p / "model" / "config.json").is_file()}
