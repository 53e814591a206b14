"""The reversible table between the names of a checkpoint and ours.

    Rule("model.layers.{i}.self_attn.q_proj.*", "layers.{i}.attn.q.*")        # * is weight or bias
    Rule("transformer.h.{i}.attn.c_attn.*", ("...q.*", "...k.*", "...v.*"), SPLIT_TURNED)
    Rule("model.layers.{i}.mlp.experts.{e}.up_proj.weight", "layers.{i}.ffn.up", STACKED)

A rule pairs names on disk with ours and gives the conversion of the tensors; its read and write are inverse. {i} is a layer, {e} an
expert. `plan` applies the table to a model's names and returns groups of tensors on disk and of ours.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """The conversion between tensors on disk and ours. read(disk tensors, our shapes) -> ours;  write(ours) -> disk tensors.

    views: `write` returns views of ours, so that a tensor on disk can be read straight into its place.
    moves: both only move numbers, so that quantised blocks can be moved in the same way.
    pieces: the tensors on disk that {e} counts, where they are not as many as the first axis of ours is long.
    made: the function of this module that returned it, and what that was given; without one it is a constant of this module. A pickle has
    the names of these.
    """

    read: Callable[[list[Tensor], list[Shape]], list[Tensor]]
    write: Callable[[list[Tensor]], list[Tensor]]
    views: bool = False
    moves: bool = True
    pieces: int | None = None
    made: tuple[Callable[..., "Layout"], int] | None = field(default=None, compare=False)

    def __reduce__(self) -> str | tuple[Any, ...]:
        if self.made is not None:
            return self.made[0], self.made[1:]
        return next(name for name, value in globals().items() if value is self)


def _turn(x: Tensor) -> Tensor:
    return x.T if x.ndim == 2 else x


def _split(x: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
    return list(x.split([s[0] for s in shapes]))


def _part_pairs(x: Tensor) -> list[Tensor]:
    """Split gpt-oss's interleaved gate and up, [E in 2F] or [E 2F], into two tensors [E F in] or [E F]."""
    return [x[..., i::2].transpose(1, 2) if x.ndim == 3 else x[..., i::2] for i in (0, 1)]


def _join_pairs(ours: list[Tensor]) -> Tensor:
    transposed = [w.transpose(1, 2) if w.ndim == 3 else w for w in ours]
    return torch.stack(transposed, -1).flatten(-2)


PLAIN = Layout(lambda disk, _: disk, lambda ours: ours, views=True)
TURNED = Layout(lambda disk, _: [_turn(x) for x in disk], lambda ours: [_turn(x) for x in ours], views=True)
SPLIT = Layout(lambda disk, shapes: _split(disk[0], shapes), lambda ours: [torch.cat(ours)])
SPLIT_TURNED = Layout(lambda disk, shapes: _split(_turn(disk[0]), shapes), lambda ours: [_turn(torch.cat(ours))])
STACKED = Layout(lambda disk, _: [torch.stack(disk)], lambda ours: list(ours[0].unbind(0)), views=True)
EXPERTS_TURNED = Layout(lambda disk, _: [disk[0].transpose(1, 2)], lambda ours: [ours[0].transpose(1, 2)], views=True)
# experts behind one another in one matrix, [(E F) D]
EXPERTS_FLAT = Layout(lambda disk, shapes: [disk[0].reshape(shapes[0])], lambda ours: [ours[0].flatten(0, 1)], views=True)
EXPERTS_FLAT_TURNED = Layout(
    lambda disk, shapes: [disk[0].unflatten(0, (shapes[0][0], -1)).transpose(1, 2)],
    lambda ours: [ours[0].transpose(1, 2).flatten(0, 1)],
)
PAIRED = Layout(lambda disk, _: _part_pairs(disk[0]), lambda ours: [_join_pairs(ours)])
FUSED = Layout(lambda disk, _: list(disk[0].chunk(2, 1)), lambda ours: [torch.cat(ours, 1)])
FUSED_TURNED = Layout(
    lambda disk, _: [half.transpose(1, 2) for half in disk[0].chunk(2, 2)], lambda ours: [torch.cat([w.transpose(1, 2) for w in ours], 2)]
)
ROW = Layout(lambda disk, _: [disk[0][0]], lambda ours: [ours[0][None]], views=True)
TAPS = Layout(lambda disk, _: [disk[0][:, 0].T], lambda ours: [ours[0].T[:, None]], views=True)  # of a convolution: [channels, 1, J]


# the weight of a convolution as torch keeps it, [channels, 1, J], the channels of several of ours behind one another
CHANNELS = Layout(
    lambda disk, shapes: [w.T.reshape(s) for w, s in zip(disk[0][:, 0].split([prod(s[1:]) for s in shapes]), shapes, strict=True)],
    lambda ours: [torch.cat([w.flatten(1).T for w in ours])[:, None]],
)
# its bias, [channels]
CHANNEL_BIASES = Layout(
    lambda disk, shapes: [b.reshape(s) for b, s in zip(disk[0].split([prod(s) for s in shapes]), shapes, strict=True)],
    lambda ours: [torch.cat([b.flatten() for b in ours])],
)


def grouped(groups: int) -> Layout:
    """Return the layout of several tensors in one, by groups: the group's share of each. Of queries, keys and values its heads of each."""

    def read(disk: list[Tensor], shapes: list[Shape]) -> list[Tensor]:
        of_group = disk[0].unflatten(0, (groups, -1))
        return [part.flatten(0, 1) for part in of_group.split([s[0] // groups for s in shapes], 1)]

    def write(ours: list[Tensor]) -> list[Tensor]:
        return [torch.cat([part.unflatten(0, (groups, -1)) for part in ours], 1).flatten(0, 1)]

    return Layout(read, write, made=(grouped, groups))


def in_columns(pieces: int) -> Layout:
    """Return the layout of a matrix that has the columns of `pieces` of ours beside each other."""
    made = in_columns, pieces
    return Layout(lambda disk, _: list(disk[0].chunk(pieces, 1)), lambda ours: [torch.cat(ours, 1)], made=made)


def by_head(heads: int) -> Layout:
    """Return the layout of a vector that has a row for each head on disk."""
    made = by_head, heads
    return Layout(lambda disk, shapes: [disk[0].reshape(shapes[0])], lambda ours: [ours[0].unflatten(0, (heads, -1))], True, made=made)


def a_tensor_a_head(heads: int) -> Layout:
    """Return the layout of a vector that has a tensor for each head on disk."""
    made = a_tensor_a_head, heads
    return Layout(
        lambda disk, _: [torch.cat(disk)], lambda ours: list(ours[0].unflatten(0, (heads, -1)).unbind(0)), True, True, heads, made
    )


@dataclass(frozen=True)
class Rule:
    """One line of a family's table."""

    disk: str
    ours: str | tuple[str, ...]
    layout: Layout = PLAIN

    @property
    def names(self) -> tuple[str, ...]:
        return (self.ours,) if isinstance(self.ours, str) else self.ours


@dataclass(frozen=True)
class TensorGroup:
    """The tensors on disk that make these tensors of ours."""

    disk: tuple[str, ...]
    ours: tuple[str, ...]
    layout: Layout


def prefixed(base: str, *head: str) -> Callable[[str], str]:
    """Return a `Family.respell` that completes names with `base`, unless they begin with it or with one of `head`.

    transformers writes a model without its head under the names inside `base`.
    """
    return lambda name: name if name.startswith((base, *head)) else f"{base}{name}"


def pattern(template: str) -> re.Pattern[str]:
    """Return a template as a regular expression with the groups i, e and end."""
    text = re.escape(template)
    for mark, group in ((r"\{i\}", r"(?P<i>\d+)"), (r"\{e\}", r"(?P<e>\d+)"), (r"\*", r"(?P<end>weight|bias)")):
        text = text.replace(mark, group)
    return re.compile(text)


def put(template: str, marks: Mapping[str, str]) -> str:
    """Return a template with the marks of a match filled in."""
    return template.replace("{i}", marks.get("i", "")).replace("*", marks.get("end", ""))


def spelling(rules: tuple[Rule, ...], names: Iterable[str]) -> tuple[Rule, ...]:
    """Return the table that fits these names on disk: experts one by one, or all of a layer in one tensor, gate before up.

    transformers stores them in memory, and optionally on disk, in the second way: `experts.gate_up_proj` [E 2F D], `down_proj` [E D F];
    `up_proj` [E F D] of experts without a gate.
    """
    apart = {r.names[0].rpartition(".")[2]: r for r in rules if r.layout is STACKED}
    if apart.keys() == {"up", "down"}:
        together = {r: Rule(r.disk.replace(".{e}", "").removesuffix(".weight"), r.ours) for r in rules if r.layout is STACKED}
        stored = any(pattern(r.disk).fullmatch(name) for r in together.values() for name in names)
        return tuple(together.get(r, r) for r in rules) if stored else rules
    if not {"gate", "up", "down"} <= apart.keys():
        return rules
    head = apart["gate"].disk.partition(".{e}")[0]
    both = Rule(f"{head}.gate_up_proj", apart["gate"].names + apart["up"].names, FUSED)
    if not any(map(pattern(both.disk).fullmatch, names)):
        return rules
    return (*(r for r in rules if r.layout is not STACKED), both, Rule(f"{head}.down_proj", apart["down"].ours))


def plan(rules: Iterable[Rule], shapes: Mapping[str, Shape]) -> tuple[list[TensorGroup], list[str]]:
    """Return the groups that fill a model's tensors (name -> shape), in the model's order, and the names that no rule matches."""
    table = [(rule, [pattern(n) for n in rule.names]) for rule in rules]
    groups: dict[TensorGroup, None] = {}
    orphans = []
    for name, shape in shapes.items():
        hit = next(((rule, m) for rule, ps in table for p in ps if (m := p.fullmatch(name))), None)
        if hit is None:
            orphans.append(name)
            continue
        rule, match = hit
        marks = match.groupdict()
        disk = put(rule.disk, marks)
        names = tuple(disk.replace("{e}", str(e)) for e in range(rule.layout.pieces or shape[0])) if "{e}" in disk else (disk,)
        groups[TensorGroup(names, tuple(put(n, marks) for n in rule.names), rule.layout)] = None
    return list(groups), orphans
