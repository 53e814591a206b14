"""A Config written as JSON: nested objects by the names of config.py's fields, for models without a published config.json.

    {"vocab": 256000, "width": 4096, "layers": [{"times": 32, "attn": {"heads": 16, ...}, "ffn": {...}, "order": "parallel"}], ...}

The place and fields of an object decide its class: with "kv_rank" it is a Latent, with "experts" a Moe; if several fit, the smallest.
"""

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from pellucid.config import Config, Layer
from pellucid.errors import ConfigError

MOST = 100_000  # layers
HIGH = 2**31 - 1


def literal(data: Mapping[str, Any], file: str) -> Config:
    """Return the Config that `data` describes; `file` is its name in errors."""
    config: Config = made((Config,), data, file, "literal")
    return config


@cache
def hints(kind: type) -> dict[str, Any]:
    """Return the fields of a dataclass with their types."""
    known = get_type_hints(kind)
    return {f.name: known[f.name] for f in fields(kind)}


def made(kinds: tuple[type, ...], data: Any, file: str, at: str) -> Any:
    """Return an instance of the dataclass in `kinds` that has all the fields of `data`, and whose required fields are all in it."""
    if not isinstance(data, Mapping):
        raise fault(file, at, data, "{ ... }")
    fitting = [k for k in kinds if required(k) <= data.keys() <= hints(k).keys()]
    if not fitting:
        near = max(kinds, key=lambda k: len(data.keys() & hints(k).keys()))
        if missing := sorted(required(near) - data.keys()):
            raise ConfigError("config.missing", file=file, field=f"{at}.{missing[0]}")
        wrong = next(name for name in data if name not in hints(near))
        raise fault(file, f"{at}.{wrong}", data[wrong], ", ".join(hints(near)))
    kind = min(fitting, key=lambda k: len(hints(k)))
    return kind(**{name: value(hints(kind)[name], v, file, f"{at}.{name}", int(name in required(kind))) for name, v in data.items()})


def required(kind: type) -> set[str]:
    """Return the fields without a default."""
    return {f.name for f in fields(kind) if f.default is MISSING}


def value(hint: Any, data: Any, file: str, at: str, low: int = 0) -> Any:
    """Return a field's value, checked against its type: a number of at least `low`, a text, a flag, an object, layers, or None."""
    options = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if data is None and type(None) in options:
        return None
    for option in options:
        if get_origin(option) is tuple and isinstance(data, list):
            inner = get_args(option)[0]
            return stack(data, file, at) if inner is Layer else tuple(value(inner, v, file, f"{at}[{i}]") for i, v in enumerate(data))
        if type(data) is option or (option is float and type(data) is int):
            if option in (int, float) and not low * (option is int) <= data <= HIGH:
                raise fault(file, at, data, f"{low} ... {HIGH}")
            return option(data)
    if nested := tuple(o for o in options if isinstance(o, type) and is_dataclass(o)):
        return made(nested, data, file, at)
    raise fault(file, at, data, " | ".join(getattr(o, "__name__", str(o)) for o in options))


def stack(data: list[Any], file: str, at: str) -> tuple[Layer, ...]:
    """Return the layers of a list in which each stands once, with the number of `times` it is repeated."""
    out: list[Layer] = []
    for i, one in enumerate(data):
        times = one.get("times", 1) if isinstance(one, Mapping) else 1
        if type(times) is not int or not 1 <= times <= MOST - len(out):
            raise fault(file, f"{at}[{i}].times", times, f"1 ... {MOST - len(out)}")
        rest = {k: v for k, v in one.items() if k != "times"} if isinstance(one, Mapping) else one
        out += [made((Layer,), rest, file, f"{at}[{i}]")] * times
    if not out:
        raise fault(file, at, data, "[{ ... }, ...]")
    return tuple(out)


def fault(file: str, at: str, value: object, allowed: str) -> ConfigError:
    return ConfigError("config.value", file=file, field=at, found=repr(value), allowed=allowed)
