"""Which module of transformers' model does what a module of ours does, found from the family's table of names alone.

A weight's two names give a pair of modules; a module that holds paired ones is the counterpart of whatever holds theirs. So two runs can
be compared tensor by tensor, and the first that differs says where the fault is:

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
    """ours and theirs are module paths; cut: which columns of their output are ours, where one of theirs does the work of several."""

    ours: str
    theirs: str
    cut: tuple[int, ...] | None = None

    def own(self, output: Tensor) -> Tensor:
        """What is ours of their output."""
        return output if self.cut is None else output[..., list(self.cut)]


@dataclass(frozen=True)
class ModuleDifference:
    """path: a module of ours. side: "input" or "output" of it. error: the largest difference over the tensor's largest value."""

    path: str
    theirs: str
    side: str
    error: float


def pairs(family: Family, model: Decoder | EncoderDecoder, other: nn.Module) -> list[ModulePair]:
    """Every module of `model` whose counterpart in `other` the names tell."""
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
    paired = {path: p for path, p in (alike | leaves).items() if path.rpartition(".")[2] not in family.residual_inside}
    return [replace(paired[path], theirs=paths[paired[path].theirs]) for path in own if path in paired]


def columns(group: TensorGroup, name: str, weights: dict[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    """Which columns of their output one of ours has, where the group shares a tensor on disk; None where it has it alone."""
    if len(group.ours) == 1:
        return None
    rows = [weights[n][:1] for n in group.ours]
    return tuple(group.layout.read([torch.arange(sum(n for (n,) in rows))], rows)[group.ours.index(name)].tolist())


def spelled(family: Family, path: str) -> str:
    """A module's path as the names on disk begin; transformers calls some otherwise in memory."""
    return family.canonical(f"{path}.weight").removesuffix(".weight") if path else path


def owner(name: str, known: dict[str, nn.Module]) -> str:
    """The nearest module that holds what has this name on disk; experts that lie apart on disk are one module."""
    path = name.rpartition(".")[0]
    while path not in known:
        path = path.rpartition(".")[0]
    return path


def shared(names: set[str], known: dict[str, nn.Module], taken: set[str]) -> str:
    """The nearest module that holds all of these and is called itself."""
    path = next(iter(names))
    while path and (
        path not in known or path in taken or not called(known[path]) or not all(f"{n}.".startswith(f"{path}.") for n in names)
    ):
        path = path.rpartition(".")[0]
    return path


def modules_in(path: str, modules: set[str]) -> set[str]:
    """Those of these modules that lie in one. BERT's attention holds the norm after it too, which in ours stands beside it."""
    return {m for m in modules if not path or f"{m}.".startswith(f"{path}.")}


def biased(module: nn.Module) -> bool:
    """Whether a product has a bias of its own; Marian's is added after the head."""
    return getattr(module, "bias", None) is not None


def called(module: nn.Module) -> bool:
    """Whether a module does something; a list of modules does nothing."""
    return not isinstance(module, nn.ModuleList)


@contextmanager
def recorded(model: nn.Module, paths: Iterable[str]) -> Iterator[Runs]:
    """Every call of these modules while the context is open: the first tensor that went in, the first that came out."""
    runs: Runs = {}

    def hook(path: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
            pair = next(tensors((args, kwargs))), next(tensors(out)).clone()  # Falcon's forward writes into it afterwards
            runs.setdefault(path, []).append(pair)

        return keep

    with ExitStack() as stack:
        for path in dict.fromkeys(paths):
            handle = model.get_submodule(path).register_forward_hook(hook(path), with_kwargs=True)
            stack.callback(handle.remove)
        yield runs


def tensors(values: Any) -> Iterator[Tensor]:
    """Every tensor of nested tuples, lists and tables, in their order."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, dict | list | tuple):
        for v in values.values() if isinstance(values, dict) else values:
            yield from tensors(v)


def first_difference(table: Iterable[ModulePair], ours: Runs, theirs: Runs, tolerance: float) -> ModuleDifference | None:
    """The first tensor, in the order of our run, that differs by more than tolerance times their largest value; None where none does."""
    by_path = {p.ours: p for p in table}
    for path, calls in ours.items():
        pair = by_path[path]
        for (x, y), (their_x, their_y) in zip(calls, theirs.get(pair.theirs, ()), strict=False):
            for side, a, b in (("input", x, their_x), ("output", y, pair.own(their_y))):
                if (error := gap(a, b)) > tolerance:
                    return ModuleDifference(path, pair.theirs, side, error)
    return None


def gap(a: Tensor, b: Tensor) -> float:
    """The largest difference of two tensors of equal elements, over the largest value of the second; 0 where they cannot be compared."""
    if b.shape[0] == 1:
        b = b.expand(len(a), *b.shape[1:])  # the same positions for every row
    if a.numel() != b.numel() or not a.is_floating_point() or not b.is_floating_point():
        return 0.0
    b = b.detach().to(a.device, a.dtype)
    orders = [b, b.transpose(1, 2)] if b.ndim == 4 else [b]  # heads may stand before tokens: Gemma 3 norms them so
    error = min(float((a.detach() - x.reshape(a.shape)).abs().max()) for x in orders) / max(float(b.abs().max()), 1e-30)
    return error if math.isfinite(error) else math.inf
