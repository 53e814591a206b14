"""A new low-rank adapter on a model: A is drawn, B is zero, so that the model computes at first what it did (arXiv 2106.09685).

    y = x Wᵀ + b + s·(x Aᵀ) Bᵀ        A ~ uniform in ±√(1/in), as PEFT draws it        s = alpha / r, or alpha / √r (arXiv 2312.03732)

The matrices are named by our paths, "layers.*.attn.[qv]". Those that are one tensor on disk, as GPT-2's c_attn, share A, and so go
together. What is saved is an adapter of PEFT's.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import blake2b
from typing import Any, cast

import torch
from torch import Tensor

from pellucid.checkpoint.adapter import Adapter, Module, layers, parameter, put, transposed
from pellucid.checkpoint.adapter_file import LowRankPair
from pellucid.errors import UseError, nearest
from pellucid.families.family import Family
from pellucid.families.names import TensorGroup, plan
from pellucid.nn.adapted import Addition
from pellucid.nn.transformer import EncoderDecoder
from pellucid.ops.precision import wide

TABLES = (".router", ".distance")  # no linear layers in transformers, so that PEFT could not read an adapter of them


def new_adapter(
    module: Module,
    family: Family,
    model: str,
    name: str,
    rank: int,
    alpha: float,
    targets: Sequence[str],
    rooted: bool = False,
    seed: int = 0,
    dropout: float = 0.0,
    dora: bool = False,
) -> Adapter:
    """Put a new adapter called `name` on a model, whose own weights no longer train. A UseError if a target matches no matrix.

    model: the name that the adapter gives its base.  targets: our paths, with `*`.  rooted: s = alpha / √rank.  seed: of A. Both matrices
    are in the dtype that the model computes in.  dropout: the share of x that a step of training leaves out before A.
    dora: the lengths of the rows of W + s·B·A train too, by themselves (arXiv 2402.09353); they begin as those of W.
    """
    groups = targeted(module, family, targets)
    if dropout and (unreached := next((n for g in groups.values() for n in g.ours if read_only(module, n)), None)):
        raise UseError("adapter.target.dropout", name=unreached.removesuffix(".weight"))
    scale = alpha / (math.sqrt(rank) if rooted else rank)
    module.requires_grad_(False)
    for path, group in groups.items():
        shapes = [tuple(module.get_parameter(n).shape) for n in group.ours]
        a, b = drawn(rank, shapes[0][1], f"{seed}:{path}"), torch.zeros(sum(out for out, _ in shapes), rank)
        put(module, name, LowRankPair(group, a, b, scale))
        for ours in group.ours:
            added = cast(Addition, module.get_submodule(f"{ours.removesuffix('.weight')}.adapters.{name}"))
            added.dropout, added.place = dropout, path
            if dora:
                weight = module.get_parameter(ours)
                added.magnitude = parameter(weight.detach().to(wide(weight.dtype)).norm(dim=1), weight)
    for path, p in module.named_parameters():
        p.requires_grad_(f".adapters.{name}." in path)
    module.edition += 1
    about = settings(module, family, groups, model, rank, alpha, rooted) | {"lora_dropout": dropout, "use_dora": dora}
    return Adapter(name, about, groups, {}, {})


def read_only(module: Module, name: str) -> bool:
    """True if a part reads the matrix of this name without a product of rows, which dropout could reach."""
    part, _, leaf = name.removesuffix(".weight").rpartition(".")
    return leaf in getattr(module.get_submodule(part), "reads_matrix", ())


def drawn(rank: int, width: int, seed: str) -> Tensor:
    """Return A [rank width] by the seed alone: kaiming-uniform with a = √5, as PEFT, which is uniform in ±√(1/width)."""
    number = int.from_bytes(blake2b(seed.encode(), digest_size=7).digest(), "little")
    return (torch.rand(rank, width, generator=torch.Generator().manual_seed(number), dtype=torch.float64) * 2 - 1) / math.sqrt(width)


def targeted(module: Module, family: Family, targets: Sequence[str]) -> dict[str, TensorGroup]:
    """Return the layers that the targets name, by their paths on disk. A UseError for a target that names none, or a part of one."""
    uses = Counter(id(p) for m in module.modules() for p in m._parameters.values() if p is not None)
    known = layers(module, family)
    ours = {n.removesuffix(".weight"): path for path, group in known.linears.items() for n in group.ours}
    ours = {n: path for n, path in ours.items() if not n.endswith(TABLES)}
    tied = {path for path in ours if uses[id(known.ours[f"{path}.weight"])] > 1}
    chosen: dict[str, None] = {}
    for target in targets:
        hits = [path for path in ours if fnmatchcase(path, target) or fnmatchcase(path, f"*.{target}")]
        if hits and tied.issuperset(hits):
            raise UseError("adapter.target.tied", name=hits[0])
        if not hits:
            names = dict.fromkeys(short(path) for path in ours if path not in tied)
            near = nearest(target, names)
            raise UseError("adapter.target", target=target, near=", ".join(names) if near == "-" else near)
        chosen.update(dict.fromkeys(path for path in hits if path not in tied))
    for path in chosen:
        together = [n.removesuffix(".weight") for n in known.linears[ours[path]].ours]
        if lacking := [other for other in together if other not in chosen]:
            raise UseError("adapter.target.fused", name=path, others=", ".join(lacking))
    return {path: known.linears[path] for path in dict.fromkeys(ours[path] for path in chosen)}


def short(path: str) -> str:
    """Return a path without its layer: "attn.q" of "layers.0.attn.q"."""
    return path.partition("layers.")[2].partition(".")[2] or path


def settings(
    module: Module, family: Family, groups: Mapping[str, TensorGroup], model: str, rank: int, alpha: float, rooted: bool
) -> dict[str, Any]:
    """Return the content of adapter_config.json."""
    every, _ = plan(family.rules_for(module.config), {n: tuple(p.shape) for n, p in module.named_parameters(remove_duplicate=False)})
    others = {n.removesuffix(".weight") for g in every for n in g.disk} - groups.keys()
    transposes = any(transposed(g, [tuple(module.get_parameter(n).shape) for n in g.ours]) for g in groups.values())
    return {
        "peft_type": "LORA",
        "task_type": "SEQ_2_SEQ_LM" if isinstance(module, EncoderDecoder) else "CAUSAL_LM",
        "base_model_name_or_path": model,
        "r": rank,
        "lora_alpha": alpha,
        "use_rslora": rooted,
        "target_modules": sorted({ending(path, others) for path in groups}),
        "bias": "none",
        "fan_in_fan_out": transposes,
        "init_lora_weights": True,
        "inference_mode": True,
    }


def ending(path: str, others: Collection[str]) -> str:
    """Return the shortest end of a path that is the end of none of the others: PEFT takes a target for the end of a name."""
    parts = path.split(".")
    ends = (".".join(parts[i:]) for i in range(len(parts) - 1, -1, -1))
    return next(end for end in ends if not any(f".{other}".endswith(f".{end}") for other in others))
