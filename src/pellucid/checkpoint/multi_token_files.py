"""Modules for multi-token prediction in a folder (nn/multi_token.py): as DeepSeek-V3's checkpoints have them, or in a file of their own.

    model.layers.61.   enorm  hnorm  eh_proj  shared_head.norm, and its block as that of a layer         a layer behind the last one
                       embed_tokens  shared_head.head                                                    repeat the model's own tensors
    multi_token.safetensors   0.token_norm.weight  0.block.attn.q.weight  ...          of a family whose checkpoints have no such layer

transformers drafts with the first. Both are left aside where a model alone is read.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from pellucid.checkpoint.disk import inside
from pellucid.checkpoint.fill import judge, on_disk, take, targets
from pellucid.checkpoint.folder import Folder
from pellucid.checkpoint.safetensors_file import read_header, read_tensor, write
from pellucid.config import Config
from pellucid.errors import CheckpointError
from pellucid.families.family import Family
from pellucid.families.names import plan, spelling
from pellucid.nn.multi_token import MultiTokenPrediction
from pellucid.nn.transformer import Decoder, cast

FILE, COUNT = "multi_token.safetensors", "num_nextn_predict_layers"
NORMS = {"enorm": "token_norm", "hnorm": "hidden_norm", "shared_head.norm": "norm"}
"""Names of a module's norms in a layer, and ours."""


def place_of(cfg: Config, k: int) -> str:
    """Return what the names of a module's tensors begin with where it is a layer."""
    return f"model.layers.{len(cfg.layers) + k}"


def as_layers(model: Decoder, modules: Iterable[MultiTokenPrediction], family: Family) -> dict[str, Tensor] | None:
    """Return the tensors of a model's modules as layers behind its last one; None if the family's checkpoints have no such layers."""
    cfg, out = model.config, dict[str, Tensor]()
    for k, one in enumerate(modules):
        at = place_of(cfg, k)
        out |= {f"{at}.{name}.weight": getattr(one, ours).weight.detach() for name, ours in NORMS.items()}
        out[f"{at}.eh_proj.weight"] = torch.cat([one.from_token.weight, one.from_rows.weight], 1).detach()
        out |= {f"{at}.embed_tokens.weight": model.embed.weight.detach(), f"{at}.shared_head.head.weight": model.head.weight.detach()}
    if family.unused(cfg, out) != out.keys():
        return None
    for k, one in enumerate(modules):
        block = {f"layers.{len(cfg.layers) + k}.{name}": t.detach() for name, t in targets(one.block).items()}
        out |= dict(on_disk(block, family.rules_for(cfg)))
    return out


def write_file(folder: Path, modules: nn.ModuleList | None) -> None:
    """Write modules by our names into a folder's file of them, or remove the one that it has, where None."""
    if modules is None:
        (folder / FILE).unlink(missing_ok=True)
    else:
        write(folder / FILE, {name: t.detach() for name, t in targets(modules).items()})


def count_of(folder: Folder, family: Family, cfg: Config) -> int:
    """Return the number of modules that a folder has."""
    if (folder.path / FILE).is_file():
        return len({name.partition(".")[0] for name in read_header(inside(folder.path, FILE))})
    known, k = set(map(family.canonical, folder.names())), 0
    while f"{place_of(cfg, k)}.eh_proj.weight" in known:
        k += 1
    return k


@torch.no_grad()
def read_modules(folder: Folder, family: Family, cfg: Config, count: int, dtype: torch.dtype) -> nn.ModuleList:
    """Return the first `count` of a folder's modules, in this dtype. A CheckpointError for one that is missing or has another shape."""
    modules = nn.ModuleList(cast(MultiTokenPrediction(cfg), dtype) for _ in range(count))
    if (folder.path / FILE).is_file():
        of_file(folder, modules)
        return modules
    spelled = {family.canonical(name): name for name in folder.names()}
    for k, one in enumerate(modules):
        assert isinstance(one, MultiTokenPrediction)
        at = place_of(cfg, k)
        ours = {f"layers.{len(cfg.layers) + k}.{name}": t for name, t in targets(one.block).items()}
        groups, _ = plan(spelling(family.rules_for(cfg), spelled), {name: tuple(t.shape) for name, t in ours.items()})
        both = torch.empty(cfg.width, 2 * cfg.width, dtype=dtype)
        alone = {f"{at}.eh_proj.weight": both} | {f"{at}.{name}.weight": getattr(one, own).weight for name, own in NORMS.items()}
        require(folder, [*alone, *(name for g in groups for name in g.disk)], spelled)
        for g in groups:
            judge(g, ours, spelled, folder, folder.file)
            take(folder, [spelled[name] for name in g.disk], g, [ours[name] for name in g.ours])
        for name, into in alone.items():
            if folder.shape(spelled[name]) != into.shape:
                stored, needed = folder.shape(spelled[name]), tuple(into.shape)
                raise CheckpointError("weights.shape", file=folder.file, name=name, found=stored, needed=needed)
            folder.read(spelled[name], into)
        one.from_token.weight.copy_(both[:, : cfg.width])
        one.from_rows.weight.copy_(both[:, cfg.width :])
    return modules


def of_file(folder: Folder, modules: nn.ModuleList) -> None:
    """Give modules the values of a folder's file of them."""
    entries, file = read_header(inside(folder.path, FILE)), os.fspath(folder.path / FILE)
    ours = targets(modules)
    require(folder, list(ours), entries, file)
    for name, t in ours.items():
        if entries[name].shape != tuple(t.shape):
            raise CheckpointError("weights.shape", file=file, name=name, found=entries[name].shape, needed=tuple(t.shape))
        read_tensor(entries[name], t)


def require(folder: Folder, names: Iterable[str], known: Mapping[str, object], file: str | None = None) -> None:
    """Raise CheckpointError for the names that a folder, or its file, does not have."""
    if missing := sorted(set(names) - known.keys()):
        raise CheckpointError("weights.missing", file=file or folder.file, count=len(missing), names=", ".join(missing[:10]))
