"""Arguments of public functions: keywords that a function does not have, and values of another type than it takes, in one line each.

    pellucid.trace(model, "Hello", step=2)     trace has no setting step; nearest: steps; all: model, prompt, steps, …
    pellucid.trace(model, "Hello", steps="2")  trace: steps is a str; allowed: int

A value is looked at only when a call has failed, so nothing that works is refused, and a call that works pays nothing.
"""

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from pellucid.default_device import on_cpu
from pellucid.errors import PellucidError, SettingError, nearest

Given = ParamSpec("Given")
Result = TypeVar("Result")
NUMBERS: dict[Any, Any] = {int: Integral, float: Real}  # NumPy's are numbers too


def checked(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Wrap `function`: a keyword that it does not have, and a value that it fails on and does not take, are SettingErrors."""
    signature, run = inspect.signature(function), on_cpu(function)
    known = [name for name in signature.parameters if name != "self"]
    axes = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())  # of a change, H=3, which it judges itself
    settings = frozenset(known)

    @functools.wraps(function)
    def call(*args: Given.args, **how: Given.kwargs) -> Result:
        for name in () if axes else how.keys() - settings:
            raise SettingError("setting.unknown", function=function.__name__, name=name, near=nearest(name, known), known=", ".join(known))
        try:
            return run(*args, **how)
        except (TypeError, AttributeError, ValueError, LookupError, RuntimeError) as fault:  # what a value of another type leads to
            if isinstance(fault, PellucidError) and not isinstance(fault, SettingError):
                raise
            for name, value, allowed in misfits(function, signature, args, how):
                kind = type(value).__name__
                raise SettingError("setting.type", function=function.__name__, name=name, found=kind, allowed=allowed) from fault
            raise

    return call


def misfits(
    function: Callable[..., Any], signature: inspect.Signature, args: tuple[Any, ...], how: Mapping[str, Any]
) -> Iterator[tuple[str, Any, str]]:
    """Yield (name, value, what is allowed) of arguments whose types are not those of a function's signature."""
    try:
        given = signature.bind(*args, **how).arguments
    except TypeError:  # Python says itself which argument is missing
        return
    try:
        hints = get_type_hints(function)
    except NameError:  # of a name in quotes, imported for type checkers alone
        hints = {}
    for name, value in given.items():
        p = signature.parameters[name]
        if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) or p.annotation is p.empty:
            continue
        if not fits(value, hints.get(name, Any if isinstance(p.annotation, str) else p.annotation)):
            yield name, value, re.sub(r"\b\w+\.|'", "", inspect.formatannotation(p.annotation))


def one_prompt(given: Any) -> bool:
    """Return whether `given` is one prompt, a text or ids in a row, and no list of prompts."""
    if isinstance(given, str) or len(given) == 0:
        return isinstance(given, str)
    return not isinstance(given[0], str | list | tuple) and getattr(given[0], "ndim", 0) == 0


def fits(value: Any, allowed: Any) -> bool:
    """Return whether a value is of an annotated type. Elements are looked at too; a value fits what is not known."""
    if allowed is Any:
        return True
    if isinstance(allowed, TypeVar):
        return not allowed.__constraints__ or any(fits(value, one) for one in allowed.__constraints__)
    origin, inner = get_origin(allowed), get_args(allowed)
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in inner)
    if origin is Literal:
        return value in inner
    kind = origin or (type(None) if allowed is None else allowed)
    if not isinstance(kind, type):
        return True
    if kind is Sequence and hasattr(value, "tolist"):  # an array or a tensor
        return True
    if isinstance(value, bool) and kind in NUMBERS:
        return False
    if not isinstance(value, NUMBERS.get(kind, kind)):
        return False
    if isinstance(value, str) and inner:  # a sequence of texts
        return fits("", inner[0])
    if isinstance(value, Mapping) and len(inner) == 2:
        return all(fits(k, inner[0]) and fits(v, inner[1]) for k, v in value.items())
    if isinstance(value, list | tuple | set | frozenset) and inner and kind is not tuple:
        return all(fits(one, inner[0]) for one in value)
    if isinstance(value, tuple) and kind is tuple and inner[-1:] != (...,):
        return len(value) == len(inner) and all(map(fits, value, inner))
    return True
