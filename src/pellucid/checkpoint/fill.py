"""Fill a model that has no storage from tensors on disk, by its family's table of names; and the way back.

Shapes are judged on meta before a byte is read; every name on disk is used or known to carry nothing, and every parameter is filled.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import torch
from torch import Tensor, nn

from pellucid.errors import CheckpointError
from pellucid.families import Family
from pellucid.families.names import Group, Rule, plan
from pellucid.models import Decoder, EncoderDecoder

SHOWN = 10  # names that an error lists


class Source(Protocol):
    """Tensors by their names on disk."""

    def names(self) -> Iterable[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str) -> Tensor: ...


def targets(model: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint holds of a model, by our names: every parameter once, and the buffers that are saved."""
    return {**dict(model.named_parameters()), **{n: b for n, b in model.named_buffers()}}


def fill(
    model: Decoder | EncoderDecoder,
    family: Family,
    source: Source,
    file: str,
    dtype: torch.dtype | None = None,
    progress: Callable[[int, int], None] = lambda done, whole: None,
) -> None:
    """Give every parameter of a model on meta its values. dtype: of parameters, None as stored; buffers stay as stored."""
    spelled = {family.respell(n): n for n in source.names()}
    ours = targets(model)
    groups, orphans = plan(family.rules(model.config), {n: tuple(t.shape) for n, t in ours.items()})
    assert not orphans, orphans
    needed = {n for g in groups for n in g.disk}
    if missing := sorted(needed - spelled.keys()):
        raise CheckpointError("weights.missing", file=file, count=len(missing), names=", ".join(missing[:SHOWN]))
    extra = sorted(
        n for n in spelled.keys() - needed if not family.ignores(n) and n not in tied_twins(model, family, spelled, source, file)
    )
    if extra:
        raise CheckpointError("weights.extra", file=file, count=len(extra), names=", ".join(extra[:SHOWN]))
    for g in groups:
        judge(g, ours, spelled, source, file)
    for done, g in enumerate(groups):
        shapes = [tuple(ours[n].shape) for n in g.ours]
        for name, value in zip(g.ours, g.layout.read([source.read(spelled[n]) for n in g.disk], shapes), strict=True):
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


def tied_twins(model: nn.Module, family: Family, spelled: dict[str, str], source: Source, file: str) -> set[str]:
    """Names of a head that is tied here and stored all the same: allowed where it is the same table, an error where it differs."""
    if not getattr(model, "config").tied:  # noqa: B009
        return set()
    named = {n: r.disk.replace("*", "weight") for r in family.rules(getattr(model, "config")) for n in r.names}  # noqa: B009
    head, embed = named["head.*"], named["embed.*"]
    if head not in spelled:
        return set()
    a, b = source.shape(spelled[head]), source.shape(spelled[embed])
    if a != b or not torch.equal(source.read(spelled[head]), source.read(spelled[embed])):
        raise CheckpointError("weights.tied", file=file, first=spelled[embed], second=spelled[head])
    return {head}


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
