"""Tables of a recipe that say what trains, [adapter], what trains beside it, [multi_token], and what of a run is recorded, [watch].

Each field is checked by name.
"""

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pellucid.errors import TrainError
from pellucid.training.recipe_tables import known, number, require, wrong

SCALES = ("alpha/r", "alpha/√r")


@dataclass(frozen=True)
class WatchSettings:
    """The [watch] table of a recipe: the steps to record. every: each step of this distance.  first: and the first ones.

    tensors: paths with `*`.  gradients: theirs too.  tokens: whose embedding is kept.  prompts: texts to run after each recorded step.
    """

    every: int | None = None
    first: int = 0
    tensors: tuple[str, ...] = ()
    gradients: bool = True
    tokens: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()


@dataclass(frozen=True)
class AdapterSettings:
    """The [adapter] table of a recipe. targets: paths of matrices, with `*`.  alpha: of the scale, by default twice the rank.

    scale: "alpha/r", or "alpha/√r" (arXiv 2312.03732).  dropout: the share of a matrix' input that a step leaves out before A.
    dora: the lengths of the changed matrix' rows train by themselves (arXiv 2402.09353).
    """

    rank: int
    alpha: float | None = None
    targets: tuple[str, ...] = ("layers.*.attn.[qkvo]",)
    name: str = "default"
    scale: str = SCALES[0]
    dropout: float = 0.0
    dora: bool = False


@dataclass(frozen=True)
class MultiTokenSettings:
    """The [multi_token] table of a recipe (arXiv 2412.19437). depth: modules, the first of which predicts the token after the next.

    weight: of the mean of their losses beside the model's own.
    """

    depth: int = 1
    weight: float = 0.3


def multi_token_settings(path: Path, given: dict[str, Any]) -> MultiTokenSettings:
    """Return the [multi_token] table, checked. That rows are long enough is checked when they are made."""
    known(path, "multi_token.", given, {f.name for f in fields(MultiTokenSettings)})
    right = {
        "depth": (type(depth := given.get("depth", 1)) is int and 1 <= depth <= 64, "int 1 … 64"),
        "weight": (number(given.get("weight", 1), 0), "number > 0"),
    }
    require(path, "multi_token", given, right)
    return MultiTokenSettings(**given)


def adapter_settings(path: Path, given: dict[str, Any], based: bool) -> AdapterSettings:
    """Return the [adapter] table, checked. based: the recipe starts from a folder, without which this is a TrainError."""
    if not based:
        raise wrong(path, "model.from", None, "str")
    known(path, "adapter.", given, {f.name for f in fields(AdapterSettings)})
    rank, alpha, targets = given.get("rank"), given.get("alpha", 1), given.get("targets", ["*"])
    right = {
        "rank": (type(rank) is int and 1 <= rank <= 1 << 16, "int > 0"),
        "alpha": (type(alpha) in (int, float) and 0 < alpha < 2.0**31, "number > 0"),
        "targets": (isinstance(targets, list) and targets and all(isinstance(t, str) and t for t in targets), '["layers.*.attn.q", ...]'),
        "name": (isinstance(name := given.get("name", "default"), str) and re.fullmatch(r"[\w-]+", name), "A-Z a-z 0-9 _ -"),
        "scale": (given.get("scale", SCALES[0]) in SCALES, ", ".join(SCALES)),
        "dropout": (type(given.get("dropout", 0)) in (int, float) and 0 <= given.get("dropout", 0) < 1, "number 0 … 1, < 1"),
        "dora": (isinstance(given.get("dora", False), bool), "true, false"),
    }
    require(path, "adapter", given, right)
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return AdapterSettings(**values)


def watch_settings(path: Path, given: dict[str, Any]) -> WatchSettings:
    """Return the [watch] table, checked."""
    known(path, "watch.", given, {f.name for f in fields(WatchSettings)})
    if not {"every", "first"} & given.keys():
        raise TrainError("recipe.one", path=path, fields="watch.every, watch.first")
    for name, value in given.items():
        if name in ("every", "first"):
            sound, allowed = type(value) is int and 0 < value < 2**63, "int > 0"
        elif name == "gradients":
            sound, allowed = isinstance(value, bool), "true, false"
        else:
            sound, allowed = isinstance(value, list) and all(isinstance(x, str) and x for x in value), '["...", ...]'
        if not sound:
            raise TrainError("recipe.field", path=path, field=f"watch.{name}", found=repr(value), allowed=allowed)
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return WatchSettings(**values)
