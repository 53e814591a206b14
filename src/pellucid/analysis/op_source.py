"""The source of the op that made a recorded tensor, and of the part it ran in: a file of this package, its lines, their text.

An op is known by its kind, which a function of `ops/` notes; a part by its class. No path that a caller gives is opened.
"""

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

import pellucid.ops
import pellucid.ops.sampling
from pellucid.ops.kinds import KINDS
from pellucid.tracing import Trace, module_of
from pellucid.watching.records import Seen

PACKAGE = "pellucid"
NATIVE = "native"  # its functions are C++


@dataclass(frozen=True)
class SourceCode:
    """Lines of a file of this package. name: of the function or the part's forward.  first, last: line numbers from 1."""

    name: str
    file: str  # pellucid/ops/linear.py
    first: int
    last: int
    text: str


@dataclass(frozen=True)
class Function:
    """A function of a module, as its syntax tree."""

    module: ModuleType
    node: ast.FunctionDef

    @property
    def code(self) -> SourceCode:
        """Return its source."""
        lines = lines_of(self.module)[self.node.lineno - 1 : self.node.end_lineno]
        return SourceCode(self.node.name, file_of(self.module), self.node.lineno, int(self.node.end_lineno or 0), "".join(lines))


@cache
def modules() -> tuple[ModuleType, ...]:
    """Return the modules of `ops/` that are Python."""
    packages = (pellucid.ops, pellucid.ops.sampling)
    names = [f"{p.__name__}.{m.name}" for p in packages for m in iter_modules(p.__path__) if not m.ispkg]
    return tuple(import_module(name) for name in names)


@cache
def lines_of(module: ModuleType) -> tuple[str, ...]:
    """Return the lines of a module's file."""
    return tuple(inspect.getsource(module).splitlines(keepends=True))


def file_of(module: ModuleType) -> str:
    """Return a module's file as its path in the package."""
    return module.__name__.replace(".", "/") + ".py"


@cache
def functions(module: ModuleType) -> tuple[ast.FunctionDef, ...]:
    """Return the functions of a module and the methods of its classes."""
    tree = ast.parse("".join(lines_of(module)))
    bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))]
    return tuple(node for body in bodies for node in body if isinstance(node, ast.FunctionDef))


def calls(node: ast.AST, name: str) -> Iterator[ast.Call]:
    """Yield the calls of a function by its plain name."""
    for one in ast.walk(node):
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == name:
            yield one


@cache
def makers(op: str) -> tuple[Function, ...]:
    """Return the functions that compute an op's output and note it. Where one only notes its argument, its callers in the module."""
    out: list[Function] = []
    for module in modules():
        for node in functions(module):
            for call in calls(node, "note"):
                names = [n.id for n in ast.walk(call.args[1]) if isinstance(n, ast.Name)]
                if not any(getattr(module, name, None) is KINDS[op] for name in names):
                    continue
                given = {a.arg for a in node.args.args}
                passed = isinstance(call.args[0], ast.Name) and call.args[0].id in given
                users = [f for f in functions(module) if f is not node and any(calls(f, node.name))] if passed else [node]
                out += [Function(module, f) for f in users]
    return tuple(out)


def tapping(texts: Iterable[str], seen: Seen) -> list[str]:
    """Return the lines of texts that tap a tensor under the last word of its path."""
    label = f'"{seen.path.rpartition(".")[2]}: '
    return [line for text in texts for line in text.splitlines() if label in line]


def op_source(seen: Seen, model: Any = None) -> SourceCode | None:
    """Return the source of the op that made a record. model: tells apart functions that note one kind. None for a view, or an edit."""
    known = makers(seen.op) if seen.op in KINDS else ()
    if len(known) < 2:
        return known[0].code if known else None
    near = list[str]()
    if model is not None and (part := part_of(model, seen)) is not None:
        home = "".join(lines_of(import_module(type(part).__module__)))
        owner = module_of(model).get_submodule(seen.weights[0].rpartition(".")[0]) if seen.weights else part
        near = [*tapping([home], seen), class_text(owner), home]
    inside = [one for one in known if tapping(["".join(lines_of(one.module))], seen)]
    for text in near:
        for one in known:
            if re.search(rf"\bops\.{one.node.name}\(", text):
                return one.code
    return (inside or known)[0].code


def class_text(part: Any) -> str:
    """Return the source of an object's class; "" for one that is not of this package."""
    return inspect.getsource(type(part)) if type(part).__module__.startswith(f"{PACKAGE}.") else ""


def part_of(model: Any, seen: Seen) -> Any:
    """Return the innermost part with parts of its own that a record's path names. None if that is no part of this package."""
    module = module_of(model)
    known, path = dict(module.named_modules()), seen.path
    while path and (path not in known or not any(True for _ in known[path].children())):
        path = path.rpartition(".")[0]
    part = known.get(path, module)
    return part if type(part).__module__.startswith(f"{PACKAGE}.") else None


def part_source(seen: Seen, model: Any) -> SourceCode | None:
    """Return the source of the forward of the part that a record was made in. None if it is not of this package."""
    part = part_of(model, seen)
    if part is None:
        return None
    forward = type(part).forward
    lines, first = inspect.getsourcelines(forward)
    home = inspect.getmodule(forward)
    if home is None or not home.__name__.startswith(f"{PACKAGE}."):
        return None
    return SourceCode(forward.__qualname__, file_of(home), first, first + len(lines) - 1, "".join(lines))


def rerun_gap(model: Any, trace: Trace, seen: Seen, code: SourceCode) -> float:
    """Call the op whose source is shown on the recorded operands of a tensor. Return its largest difference from the recorded numbers.

    For ops that take tensors alone: their operands, then their weights.
    """
    op = getattr(import_module(code.file.removesuffix(".py").replace("/", ".")), code.name)
    operands = [next(s for s in trace if (s.step, s.path) == (seen.step, path)).value.flatten(2) for path in seen.inputs]
    known = dict(module_of(model).named_parameters())
    with torch.no_grad():
        made: Tensor = op(*operands, *(known[path] for path in seen.weights))
    return float((made.reshape(seen.shape) - seen.value).abs().max())
