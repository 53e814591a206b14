"""Fill a model that has no storage from tensors on disk, by its family's table of names; and the way back.

Shapes are judged on meta before a byte is read; every name on disk is used or known to carry nothing, and every parameter is filled.
"""

from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Protocol

import torch
from torch import Tensor, nn

from pellucid.config import Config
from pellucid.errors import CheckpointError
from pellucid.families import Family
from pellucid.families.names import Group, Rule, plan
from pellucid.models import Decoder, EncoderDecoder

SHOWN = 10  # names that an error lists
WEIGHTS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


class Source(Protocol):
    """Tensors by their names on disk."""

    def names(self) -> Iterable[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str) -> Tensor: ...


def targets(model: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint holds of a model, by our names: every parameter once, and the buffers that are saved."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def fill(
    model: Decoder | EncoderDecoder,
    family: Family,
    source: Source,
    file: str,
    dtype: torch.dtype | None = None,
    progress: Callable[[int, int], None] = lambda done, whole: None,
) -> None:
    """Give every parameter of a model on meta its values. dtype: of parameters, None as stored; buffers stay as stored."""
    names = list(source.names())
    spelled = {family.respell(n): n for n in names}
    ours = targets(model)
    groups, orphans = plan(family.rules(model.config), {n: tuple(t.shape) for n, t in ours.items()})
    assert not orphans, orphans
    needed = {n for g in groups for n in g.disk}
    if missing := sorted(needed - spelled.keys()):
        raise CheckpointError("weights.missing", file=file, count=len(missing), names=", ".join(missing[:SHOWN]))
    loose = spelled.keys() - needed
    loose -= family.unused(model.config, loose) | repeated(model.config, family, spelled, source, file)
    twice = set(names) - set(spelled.values())  # in the old spelling and in the new one
    if extra := sorted(twice | {n for n in loose if prod(source.shape(spelled[n]))}):  # an expert of width 0 is stored, and is nothing
        raise CheckpointError("weights.extra", file=file, count=len(extra), names=", ".join(extra[:SHOWN]))
    for g in groups:
        judge(g, ours, spelled, source, file)
    for done, g in enumerate(groups):
        shapes = [tuple(ours[n].shape) for n in g.ours]
        held = [read(source, spelled[n], file) for n in g.disk]
        for name, value in zip(g.ours, g.layout.read(held, shapes), strict=True):
            put(model, name, value.contiguous(), dtype)
        progress(done + 1, len(groups))
    retie(model)


def judge(g: Group, ours: dict[str, Tensor], spelled: dict[str, str], source: Source, file: str) -> None:
    """Whether tensors of these shapes on disk become ours, found out on meta."""
    found = [source.shape(spelled[n]) for n in g.disk]
    wanted = [tuple(ours[n].shape) for n in g.ours]
    back = [tuple(t.shape) for t in g.layout.write([torch.empty(s, device="meta") for s in wanted])]
    for name, a, b in zip(g.disk, found, back, strict=True):
        if a != b:
            raise CheckpointError("weights.shape", file=file, name=spelled[name], found=a, needed=b)


def read(source: Source, name: str, file: str) -> Tensor:
    """One tensor on disk. Integers and eight-bit floats belong to a quantisation whose scales lie elsewhere."""
    value = source.read(name)
    if value.dtype not in WEIGHTS:
        raise CheckpointError("weights.dtype", file=file, name=name, found=value.dtype, allowed=", ".join(map(str, WEIGHTS)))
    return value


def repeated(cfg: Config, family: Family, spelled: dict[str, str], source: Source, file: str) -> set[str]:
    """Names of tensors that are stored again: a head that is tied here, say. An error where the two differ."""
    named = {n: r.disk.replace("*", "weight") for r in family.rules(cfg) for n in r.names}
    copies = {**family.copies, **({named["head.*"]: named["embed.*"]} if cfg.tied else {})}
    found = {copy: first for copy, first in copies.items() if copy in spelled and first in spelled}
    for copy, first in found.items():
        a, b = spelled[copy], spelled[first]
        if source.shape(a) != source.shape(b) or not torch.equal(source.read(a), source.read(b)):
            raise CheckpointError("weights.tied", file=file, first=b, second=a)
    return set(found)


def put(model: nn.Module, name: str, value: Tensor, dtype: torch.dtype | None) -> None:
    """Set one parameter or buffer by its path."""
    owner, _, leaf = name.rpartition(".")
    part = model.get_submodule(owner)
    if leaf in part._parameters:
        part._parameters[leaf] = nn.Parameter(value.to(dtype or value.dtype), requires_grad=False)
    else:
        part._buffers[leaf] = value.to(torch.float32) if value.dtype != torch.float64 else value


def retie(model: nn.Module) -> None:
    """One module under several paths was filled under its first; a tied head takes the embedding's new parameter."""
    config = getattr(model, "config")  # noqa: B009
    if config.tied:
        model.get_submodule("head")._parameters["weight"] = model.get_submodule("embed")._parameters["weight"]


def unfill(model: nn.Module, rules: tuple[Rule, ...]) -> Iterator[tuple[str, Tensor]]:
    """The names and tensors of a checkpoint that holds this model."""
    ours = targets(model)
    groups, orphans = plan(rules, {n: tuple(t.shape) for n, t in ours.items()})
    assert not orphans, orphans
    for g in groups:
        yield from zip(g.disk, (t.contiguous() for t in g.layout.write([ours[n].detach() for n in g.ours])), strict=True)
