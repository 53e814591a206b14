"""Low-rank adapters (LoRA, arXiv 2106.09685): put on a model, taken off, merged into its weights, written in PEFT's format.

The family's table of names maps a layer of transformers to our matrices; several matrices of one layer share A, and each has its rows of
B. An adapter's folder is checked completely before the model is changed.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.checkpoint.adapter_file import CONFIG, MAGNITUDE, PREFIX, WEIGHTS, AdapterFile, Layers, LowRankPair
from pellucid.checkpoint.disk import reason, replacing
from pellucid.checkpoint.safetensors_file import write
from pellucid.errors import CheckpointError
from pellucid.families.family import Family
from pellucid.families.names import TensorGroup, plan
from pellucid.nn.adapted import AdaptedLinear, Addition, add, remove
from pellucid.nn.linear import Linear
from pellucid.nn.transformer import Decoder, EncoderDecoder
from pellucid.ops import gain
from pellucid.ops.blocks import Blocks
from pellucid.watching.meta import META

Module = Decoder | EncoderDecoder
ON_WANTED = {"head", "narrow", "dense"}  # products of only those rows whose logits a step wants


@dataclass
class Adapter:
    """An adapter on a model: its settings, the tensors of each path, and the weights that it replaced.

    saved: of modules_to_save, by name on disk.  replaced: the model's own, by our names.
    """

    name: str
    settings: dict[str, Any]
    groups: dict[str, TensorGroup]
    saved: dict[str, TensorGroup]
    replaced: dict[str, nn.Parameter]


def adapt(module: Module, family: Family, folder: Path, name: str, others: Mapping[str, Adapter]) -> Adapter:
    """Put a folder's adapter on a model that has `others`. A CheckpointError if it does not fit, with the model unchanged."""
    file = AdapterFile(folder, layers(module, family))
    taken = {n for other in others.values() for n in other.replaced}
    if twice := [n for group, _ in file.saved.values() for n in group.ours if n in taken]:
        raise CheckpointError("adapter.twice", file=file.file, name=twice[0])
    groups, saved = {path: pair.group for path, pair in file.pairs.items()}, {n: group for n, (group, _) in file.saved.items()}
    made = Adapter(name, file.settings, groups, saved, {})
    for pair in file.pairs.values():
        put(module, name, pair)
    for group, value in file.saved.values():
        shapes = [tuple(module.get_parameter(n).shape) for n in group.ours]
        for ours, part in zip(group.ours, group.layout.read([value], shapes), strict=True):
            made.replaced[ours] = own = module.get_parameter(ours)
            swap(module, ours, parameter(part, own))
    module.edition += 1
    return made


def layers(module: Module, family: Family) -> Layers:
    """Return what an adapter can name: weights that are one tensor on disk, and the linear layers among them."""
    ours = dict(module.named_parameters(remove_duplicate=False))
    groups, _ = plan(family.rules_for(module.config), {n: tuple(p.shape) for n, p in ours.items()})
    weights = {g.disk[0]: g for g in groups if len(g.disk) == 1}
    linears = {n.removesuffix(".weight"): g for n, g in weights.items() if all(map(linear(module), g.ours))}
    return Layers(linears, weights, ours)


def linear(module: Module) -> Any:
    """Return a predicate on our names: True for the matrix of a linear layer."""
    return lambda name: name.endswith(".weight") and isinstance(module.get_submodule(name.removesuffix(".weight")), Linear)


def put(module: Module, name: str, pair: LowRankPair) -> None:
    """Add one pair A, B to the matrices that it changes."""
    first = module.get_parameter(pair.group.ours[0])
    a, shapes = parameter(pair.a, first), [tuple(module.get_parameter(n).shape) for n in pair.group.ours]
    by_columns = transposed(pair.group, shapes)

    def parts(rows: Tensor) -> list[Tensor]:
        """Return each matrix's own of the rows [out n] of all."""
        return pair.group.layout.read([rows.T if by_columns else rows], [(out, rows.shape[1]) for out, _ in shapes])

    magnitudes = [None] * len(shapes) if pair.magnitude is None else parts(pair.magnitude[:, None].to(first.device))
    for ours, rows, magnitude in zip(pair.group.ours, parts(pair.b), magnitudes, strict=True):
        path = ours.removesuffix(".weight")
        above, _, leaf = path.rpartition(".")
        owner, layer = module.get_submodule(above), module.get_submodule(path)
        assert isinstance(layer, Linear)
        letter = "N" if leaf in ON_WANTED else "S" if leaf in getattr(owner, "reads_source", ()) else "T"
        axes: Mapping[str, str] = getattr(owner, "axes")  # noqa: B009
        b, factor = parameter(rows, first), None
        if magnitude is not None:
            magnitude = magnitude[:, 0]
            factor = parameter(gain(magnitude, layer.weight.detach(), a.data, b.data, pair.scale), first)
        add(layer, name, Addition(a, b, pair.scale, axes[leaf], letter, factor, magnitude))


def transposed(group: TensorGroup, shapes: list[tuple[int, ...]]) -> bool:
    """True if the layer's matrix is stored as [in out]; PEFT's B never is."""
    out = sum(s[0] for s in shapes)
    probe = group.layout.write([torch.empty(s[0], out + 1, device=META) for s in shapes])[0]
    return probe.shape[0] != out


def parameter(value: Tensor, like: Tensor) -> nn.Parameter:
    """Return a parameter of this value on the device and in the dtype of `like`."""
    return nn.Parameter(value.to(like.device, like.dtype).clone(memory_format=torch.contiguous_format), requires_grad=False)


def swap(module: Module, name: str, value: nn.Parameter) -> None:
    """Set one parameter by its path; modules that share the old one keep it."""
    owner, _, leaf = name.rpartition(".")
    module.get_submodule(owner)._parameters[leaf] = value


def adapted(module: Module) -> list[AdaptedLinear]:
    """Return the linear layers that have adapters."""
    return [m for m in module.modules() if isinstance(m, AdaptedLinear)]


def unadapt(module: Module, adapter: Adapter) -> None:
    """Take an adapter off; the model is then as it was without."""
    for layer in adapted(module):
        if adapter.name in layer.adapters:
            remove(layer, adapter.name)
    for name, own in adapter.replaced.items():
        swap(module, name, own)
    module.edition += 1


def merge(module: Module, adapters: Mapping[str, Adapter], dequantise: bool = False) -> None:
    """Fold all adapters into the weights: y = x (W + Σ s·B·A)ᵀ + b.

    A tied matrix is refused, since the merge would change its other use too, and a quantised one, since rounding would lose the addition;
    dequantise: it becomes a plain one of the values that its blocks stand for, and so do all others.
    """
    if dequantise:
        plain(module)
    uses = Counter(id(p) for m in module.modules() for p in m._parameters.values() if p is not None)
    names = {id(m): n for n, m in module.named_modules()}
    tied = [f"{names[id(m)]}.weight" for m in adapted(module) if uses[id(m.weight)] > 1]
    tied += [n for a in adapters.values() for n, own in a.replaced.items() if uses[id(own)] > 0]
    if tied:
        raise CheckpointError("adapter.tied", name=tied[0])
    if quantised := [f"{names[id(m)]}.weight" for m in adapted(module) if isinstance(m.weight, Blocks)]:
        raise CheckpointError("adapter.quantised", name=quantised[0])
    with torch.no_grad():
        for m in adapted(module):
            m.weight.data = m.dense_weight()
            for name in list(m.adapters):
                remove(m, name)
    module.edition += 1


def plain(module: Module) -> None:
    """Make every matrix in blocks a plain one of the same values."""
    made: dict[int, nn.Parameter] = {}  # by the blocks, so that tied ones stay tied
    for name, p in list(module.named_parameters(remove_duplicate=False)):
        if isinstance(p, Blocks):
            made.setdefault(id(p), nn.Parameter(p.plain(), requires_grad=False))
            swap(module, name, made[id(p)])
    module.edition += 1


def save_adapter(folder: Path, module: Module, adapter: Adapter, overwrite: bool = False) -> None:
    """Write adapter_config.json and adapter_model.safetensors as PEFT does."""
    if (folder / WEIGHTS).exists() and not overwrite:
        raise CheckpointError("folder.holds", folder=folder, found=WEIGHTS)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as broken:
        raise CheckpointError("file.write", file=folder, reason=reason(broken)) from None
    write(folder / WEIGHTS, tensors(module, adapter))
    with replacing(folder / CONFIG) as part:
        part.write_text(json.dumps(adapter.settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def tensors(module: Module, adapter: Adapter) -> dict[str, Tensor]:
    """Return an adapter's tensors by their names on disk."""
    by_name: dict[str, Tensor] = {}
    for path, group in adapter.groups.items():
        on: list[Addition] = []
        for ours in group.ours:
            layer = module.get_submodule(ours.removesuffix(".weight"))
            assert isinstance(layer, AdaptedLinear)
            on.append(layer.adapters[adapter.name])  # type: ignore[arg-type]
        by_columns = transposed(group, [tuple(a.lora_b.weight.shape) for a in on])
        b = group.layout.write([a.lora_b.weight.detach() for a in on])[0]
        by_name[f"{PREFIX}{path}.lora_A.weight"] = on[0].lora_a.weight
        by_name[f"{PREFIX}{path}.lora_B.weight"] = b.T if by_columns else b
        if magnitudes := [a.magnitude.detach()[:, None] for a in on if a.magnitude is not None]:
            by_name[f"{PREFIX}{path}.{MAGNITUDE}"] = group.layout.write(magnitudes)[0].flatten()
    for name, group in adapter.saved.items():
        by_name[PREFIX + name] = group.layout.write([module.get_parameter(n).detach() for n in group.ours])[0]
    return by_name
