"""Fill a model without storage from tensors on disk, by its family's table of names; and the way back.

Shapes are judged on meta before a byte is read; every name on disk is used or known to carry nothing, and every parameter is filled.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from math import prod
from typing import Protocol

import torch
from torch import Tensor, nn

from pellucid import huge_pages
from pellucid.checkpoint.packing import Packing, unpacked
from pellucid.checkpoint.tied import borrowed, copies
from pellucid.config import Config
from pellucid.errors import CheckpointError
from pellucid.families.family import Family
from pellucid.families.names import Rule, TensorGroup, plan, spelling
from pellucid.nn.transformer import Decoder, EncoderDecoder, retie
from pellucid.ops.blocks import Blocks
from pellucid.ops.precision import wide
from pellucid.watching.meta import META

SHOWN = 10  # names that an error lists
WEIGHTS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


class Source(Protocol):
    """Tensors by their names on disk. `read` fills `into`, or returns a new tensor; dtype: of a quantised tensor, when dequantised."""

    def names(self) -> Iterable[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def dtype(self, name: str) -> torch.dtype: ...

    def read(self, name: str, into: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor: ...


def targets(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a model that a checkpoint stores, by our names: every parameter once, and the saved buffers."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def fill(
    model: Decoder | EncoderDecoder,
    family: Family,
    source: Source,
    file: str,
    dtype: torch.dtype | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    packing: Packing | None = None,
) -> tuple[str, ...]:
    """Give every parameter of a model on meta its values, and return the names on disk that carry nothing for it.

    dtype: of parameters, None as stored; buffers stay as stored. At most one more tensor is in memory at a time.
    packing: stores matrices in blocks; what is not in blocks on disk is quantised as it is read.
    """
    names = list(source.names())
    spelled = {family.canonical(n): n for n in names}
    spelled |= {first: spelled[copy] for first, copy in borrowed(model.config, family, spelled).items()}
    ours = targets(model)
    groups, orphans = plan(spelling(family.rules_for(model.config), spelled), {n: tuple(t.shape) for n, t in ours.items()})
    assert not orphans, orphans
    needed = {n for g in groups for n in g.disk}
    if missing := sorted(needed - spelled.keys()):
        raise CheckpointError("weights.missing", file=file, count=len(missing), names=", ".join(missing[:SHOWN]))
    loose = spelled.keys() - needed
    left = family.unused(model.config, loose)
    loose -= left | repeated(model.config, family, spelled, source, file)
    twice = set(names) - set(spelled.values())  # in the old spelling and in the new one
    surplus = {spelled[n] for n in loose}
    if extra := sorted(twice | {n for n in surplus if prod(source.shape(n))}):  # an expert of width 0 is stored, and is nothing
        raise CheckpointError("weights.extra", file=file, count=len(extra), names=", ".join(extra[:SHOWN]))
    for g in groups:
        disk = [spelled[n] for n in g.disk]
        if packing is not None and packing.parts(disk):
            packing.judge(disk, g, ours, file)
        else:
            judge(g, ours, spelled, source, file)
    for done, g in enumerate(groups):
        disk = [spelled[n] for n in g.disk]
        if packing is not None and packing.parts(disk):
            packing.read(model, disk, g, ours)
        else:
            stored = reduce(torch.promote_types, map(source.dtype, disk))
            if packing is not None and packing.holds(g, ours):
                take(source, disk, g, places := packing.places([ours[n].shape for n in g.ours], stored))
                packing.pack(model, g.ours, file, places)
            else:
                take(source, disk, g, [place(model, n, ours[n].shape, stored, dtype) for n in g.ours])
        progress(done + 1, len(groups))
    retie(model)
    return tuple(sorted(spelled[n] for n in left))


def take(source: Source, disk: Sequence[str], g: TensorGroup, places: list[Tensor]) -> None:
    """Read a group into `places`. A tensor on disk that makes several of ours is read into memory first."""
    if g.layout.views:
        for name, into in zip(disk, g.layout.write(places), strict=True):
            source.read(name, into)
        return
    read = [source.read(n, dtype=places[0].dtype) for n in disk]
    for into, value in zip(places, g.layout.read(read, [tuple(p.shape) for p in places]), strict=True):
        into.copy_(value)


def judge(g: TensorGroup, ours: dict[str, Tensor], spelled: dict[str, str], source: Source, file: str) -> None:
    """Raise a CheckpointError unless the group's shapes on disk fit ours, computed on meta, and its dtypes are those of weights.

    Integers and eight-bit floats belong to a quantisation whose scales lie elsewhere.
    """
    for name in (spelled[n] for n in g.disk):
        if (kind := source.dtype(name)) not in WEIGHTS:
            raise CheckpointError("weights.dtype", file=file, name=name, found=kind, allowed=", ".join(map(str, WEIGHTS)))
    shapes = [source.shape(spelled[n]) for n in g.disk]
    wanted = [tuple(ours[n].shape) for n in g.ours]
    back = [tuple(t.shape) for t in g.layout.write([torch.empty(s, device=META) for s in wanted])]
    for name, a, b in zip(g.disk, shapes, back, strict=True):
        if a != b:
            raise CheckpointError("weights.shape", file=file, name=spelled[name], found=a, needed=b)


def repeated(cfg: Config, family: Family, spelled: dict[str, str], source: Source, file: str) -> set[str]:
    """Return the names of tensors that are stored twice, such as a tied head. A CheckpointError if the two differ."""
    pairs = {copy: first for copy, first in copies(cfg, family).items() if copy in spelled and first in spelled}
    for copy, first in pairs.items():
        a, b = spelled[copy], spelled[first]
        if a == b:
            continue
        if source.shape(a) != source.shape(b) or not torch.equal(source.read(a), source.read(b)):
            raise CheckpointError("weights.copy" if copy in family.copies else "weights.tied", file=file, first=b, second=a)
    return set(pairs)


def place(model: nn.Module, name: str, shape: torch.Size, stored: torch.dtype, dtype: torch.dtype | None) -> Tensor:
    """Allocate uninitialised storage for the parameter or buffer `name` and return it."""
    owner, _, leaf = name.rpartition(".")
    part = model.get_submodule(owner)
    if leaf not in part._parameters:
        part._buffers[leaf] = value = huge_pages.empty(shape, wide(stored))
        return value
    value = huge_pages.empty(shape, dtype or stored)
    part._parameters[leaf] = nn.Parameter(value, requires_grad=False)
    return value


def unfill(model: nn.Module, rules: tuple[Rule, ...]) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and tensors of a checkpoint of this model."""
    yield from on_disk(targets(model), rules)


def on_disk(ours: Mapping[str, Tensor], rules: tuple[Rule, ...]) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and tensors on disk of tensors by our names."""
    groups, orphans = plan(rules, {n: tuple(t.shape) for n, t in ours.items()})
    assert not orphans, orphans
    for g in groups:
        tensors = [ours[n].detach() for n in g.ours]
        if blocked := [t for t in tensors if isinstance(t, Blocks)]:
            yield from unpacked(g, blocked)
        else:
            yield from zip(g.disk, (t.contiguous() for t in g.layout.write(tensors)), strict=True)
