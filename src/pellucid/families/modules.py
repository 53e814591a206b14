"""Pairs of modules, ours and transformers', that do the same work; the family's table of names alone determines them.

A weight's two names give a pair of modules; modules that contain paired modules are paired too. So two runs are compared tensor by
tensor, and the first difference locates the fault:

    layers.1.attn.q     model.layers.1.self_attn.q_proj          layers.1.attn     model.layers.1.self_attn
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.families.family import Family
from pellucid.families.names import TensorGroup, plan
from pellucid.nn.transformer import Decoder, EncoderDecoder

Runs = dict[str, list[tuple[Tensor, Tensor]]]  # the input and the output of each call of a module, in the order in which calls end


@dataclass(frozen=True)
class ModulePair:
    """Two module paths. cut: the columns of their output that are ours, where one of their modules does the work of several."""

    ours: str
    theirs: str
    cut: tuple[int, ...] | None = None

    def own(self, output: Tensor) -> Tensor:
        """Return our columns of their output."""
        return output if self.cut is None else output[..., list(self.cut)]


@dataclass(frozen=True)
class ModuleDifference:
    """A difference. path: our module.  side: "input" or "output".  error: the largest one over the tensor's largest value."""

    path: str
    theirs: str
    side: str
    error: float


def pairs(family: Family, model: Decoder | EncoderDecoder, other: nn.Module) -> list[ModulePair]:
    """Return a pair for every module of `model` that has a counterpart in `other`."""
    paths = {spelled(family, path): path for path, _ in other.named_modules()}
    known, own = {s: other.get_submodule(path) for s, path in paths.items()}, dict(model.named_modules(remove_duplicate=False))
    weights = {n: tuple(p.shape) for n, p in model.named_parameters(remove_duplicate=False)}
    groups, _ = plan(family.rules_for(model.config), weights)
    leaves: dict[str, ModulePair] = {}
    inside: dict[str, set[str]] = {}  # the counterparts of what each module of ours holds
    for g in groups:
        theirs = owner(g.disk[0], known)
        if model.config.embed_scale != 1.0 and hasattr(known[theirs], "embed_scale"):
            continue  # it gives scaled rows, and our table does not yet
        for name in g.ours:
            path, _, leaf = name.rpartition(".")
            if leaf == "weight" and g.disk[0].rpartition(".")[0] == theirs and biased(own[path]) <= biased(known[theirs]):
                leaves[path] = ModulePair(path, theirs, columns(g, name, weights))
            for above in (path[:end] for end in (*(i for i, c in enumerate(path) if c == "."), len(path), 0)):
                inside.setdefault(above, set()).add(theirs)
    taken = {p.theirs for p in leaves.values()}
    parts = {p: ModulePair(p, shared(names, known, taken)) for p, names in inside.items() if p not in leaves and called(own[p])}
    outer = {above for path in parts for above in parts if path.startswith(f"{above}.") and inside[path] == inside[above]}
    alike = {path: p for path, p in parts.items() if modules_in(p.theirs, taken) <= inside[path] and path not in outer}
    paired = {path: p for path, p in (alike | leaves).items() if path.rpartition(".")[2] not in family.does_more}
    return [replace(paired[path], theirs=paths[paired[path].theirs]) for path in own if path in paired]


def columns(group: TensorGroup, name: str, weights: dict[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    """Return the columns of their output that belong to one of ours, if the group shares a tensor on disk; else None."""
    if len(group.ours) == 1:
        return None
    rows = [weights[n][:1] for n in group.ours]
    return tuple(group.layout.read([torch.arange(sum(n for (n,) in rows))], rows)[group.ours.index(name)].tolist())


def spelled(family: Family, path: str) -> str:
    """Return a module's path as names on disk begin; transformers calls some modules otherwise in memory."""
    return family.canonical(f"{path}.weight").removesuffix(".weight") if path else path


def owner(name: str, known: dict[str, nn.Module]) -> str:
    """Return the nearest module that contains the tensor of this name on disk; separate experts count as one module."""
    path = name.rpartition(".")[0]
    while path not in known:
        path = path.rpartition(".")[0]
    return path


def shared(names: set[str], known: dict[str, nn.Module], taken: set[str]) -> str:
    """Return the nearest called module that contains all of `names`."""
    path = next(iter(names))
    while path and (
        path not in known or path in taken or not called(known[path]) or not all(f"{n}.".startswith(f"{path}.") for n in names)
    ):
        path = path.rpartition(".")[0]
    return path


def modules_in(path: str, modules: set[str]) -> set[str]:
    """Return those of `modules` that lie inside `path`. BERT's attention contains the norm after it, which ours does not."""
    return {m for m in modules if not path or f"{m}.".startswith(f"{path}.")}


def biased(module: nn.Module) -> bool:
    """True if a product has a bias of its own; Marian's is added after the head."""
    return getattr(module, "bias", None) is not None


def called(module: nn.Module) -> bool:
    """True if a module has a forward of its own; a list of modules has none."""
    return not isinstance(module, nn.ModuleList)


@contextmanager
def recorded(model: nn.Module, paths: Iterable[str]) -> Iterator[Runs]:
    """Record every call of these modules while the context is open: its first input tensor and its first output with axes."""
    runs: Runs = {}

    def hook(path: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
            made = next(t for t in tensors(out) if t.ndim).clone()  # behind a loss of experts; Falcon's forward writes into it afterwards
            given = next(tensors((args, kwargs)), made)  # Blenderbot's positions are given a length alone
            runs.setdefault(path, []).append((given, made))

        return keep

    with ExitStack() as stack:
        for path in dict.fromkeys(paths):
            handle = model.get_submodule(path).register_forward_hook(hook(path), with_kwargs=True)
            stack.callback(handle.remove)
        yield runs


def tensors(values: Any) -> Iterator[Tensor]:
    """Yield every tensor in nested tuples, lists and dicts, in order."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, dict | list | tuple):
        for v in values.values() if isinstance(values, dict) else values:
            yield from tensors(v)


def first_difference(table: Iterable[ModulePair], ours: Runs, theirs: Runs, tolerance: float) -> ModuleDifference | None:
    """Return the first tensor of our run that differs by more than `tolerance` of their largest value; None if none does."""
    by_path = {p.ours: p for p in table}
    for path, calls in ours.items():
        pair = by_path[path]
        for (x, y), (their_x, their_y) in zip(calls, theirs.get(pair.theirs, ()), strict=False):
            for side, a, b in (("input", x, their_x), ("output", y, pair.own(their_y))):
                if (error := gap(a, b)) > tolerance:
                    return ModuleDifference(path, pair.theirs, side, error)
    return None


def gap(a: Tensor, b: Tensor) -> float:
    """Return the largest difference of two tensors over the largest value of the second; 0 if they cannot be compared."""
    if b.shape[0] == 1 or b.shape == a.shape[1:]:
        b = b.expand(len(a), *a.shape[1:])  # the same positions for every row
    if a.numel() != b.numel() or not a.is_floating_point() or not b.is_floating_point():
        return 0.0
    b = b.detach().to(a.device, a.dtype)
    orders = [b, b.transpose(1, 2)] if b.ndim == 4 else [b]  # heads may stand before tokens: Gemma 3 norms them so
    error = min(float((a.detach() - x.reshape(a.shape)).abs().max()) for x in orders) / max(float(b.abs().max()), 1e-30)
    return error if math.isfinite(error) else math.inf
