"""Tables of a recipe that say what an objective makes small: [prefer], [distil], [reward]. Each field is checked by name."""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pellucid.errors import TrainError

PREFERENCES = ("dpo", "ipo", "hinge")
REWARDS = ("exact", "begins", "number", "regex")
OWN = re.compile(r"([^:]+\.py):([A-Za-z_]\w*)")
"""A check by a function of the user's: its file, relative to the recipe, and its name."""
OWN_FORM = "file.py:function"
LONGEST_PATTERN = 1000
Check = Mapping[str, tuple[object, str]]
"""For each field whether its value is sound, and what is allowed."""


@dataclass(frozen=True)
class PreferSettings:
    """The [prefer] table of a recipe. beta: how much the answers may part from the first weights' own; a smaller one lets them further.

    loss: "dpo" (arXiv 2305.18290), "ipo" (arXiv 2310.12036) or "hinge" (arXiv 2305.10425).  smoothing: of "dpo", the share of pairs that
    are taken to be labelled the wrong way round.
    """

    beta: float = 0.1
    loss: str = "dpo"
    smoothing: float = 0.0


@dataclass(frozen=True)
class DistilSettings:
    """The [distil] table of a recipe. teacher: a folder, a specimen or a hub id.  temperature: of both distributions.

    top: how many of the teacher's likeliest ids count, None for all.
    """

    teacher: str
    temperature: float = 1.0
    top: int | None = None


@dataclass(frozen=True)
class RewardSettings:
    """The [reward] table of a recipe. check: what makes an answer right, one of REWARDS, or "file.py:function" beside the recipe.

    pattern: of "regex", a regular expression that an answer has; its first group, if it has one, is a right answer.  group: answers drawn
    for each prompt.  new: the most tokens of an answer.  temperature: of the draws.  scaled: advantages are divided by the deviation of
    their group.
    """

    check: str = REWARDS[0]
    pattern: str | None = None
    group: int = 8
    new: int = 64
    temperature: float = 1.0
    scaled: bool = False


@dataclass(frozen=True)
class RanksSettings:
    """The [ranks] table of a recipe. data: processes that share a step's documents.  tensor: those that share heads and neurons.

    expert: those that share complete experts. tensor is then as many, of the same processes, or 1.
    shard: the data processes that have one copy of weights, gradients and moments between them.
    """

    data: int = 1
    tensor: int = 1
    expert: int = 1
    shard: int = 1

    @property
    def processes(self) -> int:
        """Return the number of processes."""
        return self.data * max(self.tensor, self.expert)


@dataclass(frozen=True)
class RunLength:
    """The length of a run in the [train] table of a recipe, where that is not in steps. tokens: that carry loss.  epochs: of the data."""

    tokens: float | None = None
    epochs: float | None = None


Aim = PreferSettings | DistilSettings | RewardSettings


def known(path: Path, table: str, table_given: dict[str, Any], allowed: set[str]) -> None:
    """Raise TrainError for the first field of a table that is not in `allowed`."""
    for field in sorted(table_given.keys() - allowed):
        near = difflib.get_close_matches(field, sorted(allowed), 1, 0.7)
        if near:
            raise TrainError("recipe.near", path=path, field=table + field, near=table + near[0])
        raise TrainError("recipe.unknown", path=path, field=table + field, allowed=", ".join(sorted(allowed)))


def wrong(path: Path, field: str, value: object, allowed: str) -> TrainError:
    """Return the fault of a field whose value is not allowed, or that is missing: None."""
    if value is None:
        return TrainError("recipe.missing", path=path, field=field, allowed=allowed)
    return TrainError("recipe.field", path=path, field=field, found=repr(value), allowed=allowed)


def require(path: Path, table: str, given: Mapping[str, Any], checks: Check) -> None:
    """Raise TrainError for the first field of a table that is not sound."""
    for field, (sound, allowed) in checks.items():
        if not sound:
            raise wrong(path, f"{table}.{field}", given.get(field), allowed)


def number(value: object, least: float, most: float = 2.0**31) -> bool:
    """True for a number above `least`, and below `most`."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least < value < most


def prefer_settings(path: Path, given: dict[str, Any]) -> PreferSettings:
    """Return the [prefer] table, checked."""
    known(path, "prefer.", given, {f.name for f in fields(PreferSettings)})
    loss, smoothing = given.get("loss", PREFERENCES[0]), given.get("smoothing", 0.0)
    checks = {
        "beta": (number(given.get("beta", 1), 0), "number > 0"),
        "loss": (loss in PREFERENCES, ", ".join(PREFERENCES)),
        "smoothing": (smoothing == 0 or (loss == "dpo" and number(smoothing, 0, 0.5)), "number 0 … 0.5, dpo"),
    }
    require(path, "prefer", given, checks)
    return PreferSettings(**given)


def distil_settings(path: Path, given: dict[str, Any]) -> DistilSettings:
    """Return the [distil] table, checked. The teacher's folder is looked for when the run begins."""
    known(path, "distil.", given, {f.name for f in fields(DistilSettings)})
    teacher, top = given.get("teacher"), given.get("top", 1)
    checks = {
        "teacher": (isinstance(teacher, str) and teacher, "str"),
        "temperature": (number(given.get("temperature", 1), 0), "number > 0"),
        "top": (type(top) is int and 1 <= top < 2**31, "int > 0"),
    }
    require(path, "distil", given, checks)
    return DistilSettings(**given)


def reward_settings(path: Path, given: dict[str, Any]) -> RewardSettings:
    """Return the [reward] table, checked."""
    known(path, "reward.", given, {f.name for f in fields(RewardSettings)})
    group, new = given.get("group", 2), given.get("new", 1)
    check, pattern = given.get("check", REWARDS[0]), given.get("pattern")
    checks = {
        "check": (isinstance(check, str) and (check in REWARDS or OWN.fullmatch(check)), ", ".join((*REWARDS, OWN_FORM))),
        "pattern": (sound_pattern(pattern) if check == "regex" else pattern is None, 'check = "regex": "#### ([0-9]+)", without (...)*'),
        "group": (type(group) is int and 2 <= group <= 1024, "int 2 … 1024"),
        "new": (type(new) is int and 1 <= new < 1 << 20, "int > 0"),
        "temperature": (number(given.get("temperature", 1), 0, 1000), "number > 0"),
        "scaled": (isinstance(given.get("scaled", False), bool), "true, false"),
    }
    require(path, "reward", given, checks)
    return RewardSettings(**given)


def sound_pattern(pattern: object) -> bool:
    """True for a regular expression without repeated groups, whose search could take longer than a life."""
    if not isinstance(pattern, str) or not pattern or len(pattern) > LONGEST_PATTERN:
        return False
    plain = re.sub(r"\[\^?\]?[^]]*\]", "x", re.sub(r"\\.", "x", pattern, flags=re.DOTALL))
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return not re.search(r"\)[*+{]", plain)


def ranks_settings(path: Path, given: dict[str, Any]) -> RanksSettings:
    """Return the [ranks] table, checked. That as many processes run is checked when the run begins."""
    known(path, "ranks.", given, {f.name for f in fields(RanksSettings)})
    require(path, "ranks", given, {name: (type(n) is int and 0 < n < 1 << 16, "int > 0") for name, n in given.items()})
    tensor, expert, data, shard = (given.get(name, 1) for name in ("tensor", "expert", "data", "shard"))
    require(path, "ranks", given, {"shard": (data % shard == 0, f"a divisor of ranks.data, {data}")})
    require(path, "ranks", given, {"tensor": (expert == 1 or tensor in (1, expert), f"1, ranks.expert = {expert}")})
    return RanksSettings(**given)


def run_length(path: Path, given: dict[str, Any]) -> RunLength | None:
    """Return what the [train] table says of a run's length, checked; None if it gives steps."""
    names = [name for name in ("steps", "tokens", "epochs") if name in given]
    if len(names) != 1:
        raise TrainError("recipe.one", path=path, fields="train.steps, train.tokens, train.epochs")
    if names == ["steps"]:
        return None
    require(path, "train", given, {names[0]: (number(given[names[0]], 0, 2.0**53), "number > 0")})
    return RunLength(**{names[0]: given[names[0]]})


AIMS: Mapping[str, Callable[[Path, dict[str, Any]], Aim]] = {
    "prefer": prefer_settings,
    "distil": distil_settings,
    "reward": reward_settings,
}
"""For each objective that has a table of its own, the reader of it."""
