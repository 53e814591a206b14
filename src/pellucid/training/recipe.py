"""Recipes: a TOML file with the model, its tokenizer, its data and its training. Every field is checked by name."""

import re
import tomllib
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from pellucid.checkpoint.disk import read_whole
from pellucid.errors import TrainError
from pellucid.training.corpus import corpora
from pellucid.training.invented import WORDS, Invented, most_facts
from pellucid.training.objectives import OBJECTIVES

RECIPE_BYTES = 1_000_000
NUMBERS = {"texts": 1, "facts": 2, "copies": 0, "length": 2}
"""The least of each number that a corpus of invented facts needs in [data]."""
FROM_ZERO = {"seed", "warmup", "weight_decay", "floor", "correction"}
BELOW_ONE = {"beta1", "beta2", "smoothing"}


@dataclass(frozen=True)
class TrainSettings:
    """The [train] table of a recipe: AdamW with a warm-up and a cosine down to `floor` of the learning rate.

    batch: documents a step.  pool: batches that are filled from one pool sorted by length, so that little is padded.
    """

    seed: int
    steps: int
    batch: int
    learning_rate: float
    warmup: int = 100
    floor: float = 0.1
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0
    smoothing: float = 0.0  # of the targets, 0.1 in arXiv 1706.03762 §5.4
    correction: float = 1e-3  # by how much a router's correction moves in a step, arXiv 2408.15664
    pool: int = 16
    spread: float = 0.02  # standard deviation of the first weights
    save_every: int = 1000
    log_every: int = 50


@dataclass(frozen=True)
class Recipe:
    """A recipe. model: fields of a Hugging Face config.json.  data, tokenizer: of the corpus.

    objective: what is trained, one of `objectives.OBJECTIVES`.
    """

    path: Path
    name: str
    model: dict[str, Any]
    tokenizer: dict[str, Any]
    data: Path | Invented
    objective: str
    train: TrainSettings


def read_recipe(path: Path) -> Recipe:
    """Read and check a recipe. data.folder: a corpus that ships, "pellucid/capitals", or a folder relative to the recipe."""
    raw = read_whole(path, RECIPE_BYTES, TrainError)
    try:
        tables = tomllib.loads(raw.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise TrainError("recipe.toml", path=path, reason=fault) from None
    known(path, "", tables, {"name", "objective", "model", "tokenizer", "data", "train"})
    for field, kind in {"name": str, "model": dict, "tokenizer": dict, "data": dict, "train": dict}.items():
        if not isinstance(tables.get(field), kind):
            raise TrainError("recipe.field", path=path, field=field, found=repr(tables.get(field)), allowed=kind.__name__)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", tables["name"]):  # it names the run's folder
        raise TrainError("recipe.field", path=path, field="name", found=repr(tables["name"]), allowed="A-Z a-z 0-9 . _ -")
    objective = tables.get("objective", "causal")
    if not isinstance(objective, str) or objective not in OBJECTIVES:
        raise TrainError("recipe.field", path=path, field="objective", found=repr(objective), allowed=", ".join(OBJECTIVES))
    data, size = data_of(path, tables["data"], objective), tables["tokenizer"].get("size")
    known(path, "tokenizer.", tables["tokenizer"], {"size"})
    if type(size) is not int or not 257 <= size < 1 << 24:
        raise TrainError("recipe.field", path=path, field="tokenizer.size", found=repr(size), allowed="int >= 257")
    train = settings(path, tables["train"])
    return Recipe(path, tables["name"], tables["model"], tables["tokenizer"], data, objective, train)


def data_of(path: Path, given: dict[str, Any], objective: str) -> Path | Invented:
    """Return the corpus that the [data] table names: a folder of facts, or of words to invent facts from, with its numbers."""
    name = given.get("folder")
    if not isinstance(name, str):
        raise TrainError("recipe.field", path=path, field="data.folder", found=repr(name), allowed="str")
    if name.startswith("pellucid/") and name not in corpora():
        raise TrainError("recipe.field", path=path, field="data.folder", found=repr(name), allowed=", ".join(corpora()))
    folder = corpora().get(name, path.parent / name)
    if not (folder / WORDS).exists():
        known(path, "data.", given, {"folder"})
        return folder
    known(path, "data.", given, {"folder", *NUMBERS})
    if objective not in ("causal", "prefix"):
        raise TrainError("recipe.field", path=path, field="objective", found=repr(objective), allowed="causal, prefix")
    most = {"facts": most_facts(folder)}
    for field, least in NUMBERS.items():
        value, high = given.get(field), most.get(field, 2**31)
        if type(value) is not int or not least <= value <= high:
            raise TrainError("recipe.field", path=path, field=f"data.{field}", found=repr(value), allowed=f"int {least} … {high}")
    return Invented(folder, **{field: given[field] for field in NUMBERS})


def known(path: Path, table: str, table_given: dict[str, Any], allowed: set[str]) -> None:
    """Raise TrainError for the first field of a table that is not in `allowed`."""
    for field in sorted(table_given.keys() - allowed):
        raise TrainError("recipe.unknown", path=path, field=table + field, allowed=", ".join(sorted(allowed)))


def settings(path: Path, given: dict[str, Any]) -> TrainSettings:
    """Return the [train] table, checked against its bounds."""
    known(path, "train.", given, {f.name for f in fields(TrainSettings)})
    for field in fields(TrainSettings):
        name, is_int = field.name, field.type is int
        value = given.get(name, field.default)
        kind = "int" if is_int else "number"
        if value is MISSING:
            raise TrainError("recipe.field", path=path, field=f"train.{name}", found="-", allowed=kind)
        right = type(value) is int if is_int else type(value) in (int, float)
        high = 1.0 if name in BELOW_ONE else 2.0**63
        if not right or not 0 <= value < high or (value == 0 and name not in FROM_ZERO | BELOW_ONE):
            bound = f"{kind} {'>=' if name in FROM_ZERO | BELOW_ONE else '>'} 0" + (", < 1" if name in BELOW_ONE else "")
            raise TrainError("recipe.field", path=path, field=f"train.{name}", found=repr(value), allowed=bound)
    return TrainSettings(**given)
