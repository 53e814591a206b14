"""A recipe: one TOML file that tells the model, its tokenizer, its data and how it is trained. Every field is checked by name."""

import tomllib
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from pellucid.errors import TrainError


@dataclass(frozen=True)
class Settings:
    """How to train: AdamW with a warm-up and a cosine down to `floor` of the learning rate.

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
    pool: int = 16
    spread: float = 0.02  # standard deviation of the first weights
    save_every: int = 1000
    log_every: int = 50


@dataclass(frozen=True)
class Recipe:
    """A whole recipe; `model` are the fields of a Hugging Face config.json, `data` and `tokenizer` belong to the corpus."""

    path: Path
    name: str
    model: dict[str, Any]
    tokenizer: dict[str, Any]
    data: Path
    train: Settings


def read_recipe(path: Path) -> Recipe:
    """Read and check a recipe; data folders are relative to it."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TrainError("recipe.missing", path=path) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
        raise TrainError("recipe.toml", path=path, reason=fault) from None
    allowed = {"name", "model", "tokenizer", "data", "train"}
    for field in found.keys() - allowed:
        raise TrainError("recipe.unknown", path=path, field=field, allowed=", ".join(sorted(allowed)))
    for field, kind in {"name": str, "model": dict, "tokenizer": dict, "data": dict, "train": dict}.items():
        if not isinstance(found.get(field), kind):
            raise TrainError("recipe.field", path=path, field=field, found=repr(found.get(field)), allowed=kind.__name__)
    folder, size = found["data"].get("folder"), found["tokenizer"].get("size")
    if not isinstance(folder, str):
        raise TrainError("recipe.field", path=path, field="data.folder", found=repr(folder), allowed="str")
    if type(size) is not int or size < 257:
        raise TrainError("recipe.field", path=path, field="tokenizer.size", found=repr(size), allowed=">= 257")
    return Recipe(path, found["name"], found["model"], found["tokenizer"], path.parent / folder, settings(path, found["train"]))


def settings(path: Path, found: dict[str, Any]) -> Settings:
    """The [train] table with its bounds."""
    known = {f.name: f for f in fields(Settings)}
    for name in found.keys() - known.keys():
        raise TrainError("recipe.unknown", path=path, field=f"train.{name}", allowed=", ".join(known))
    for name, field in known.items():
        whole = field.type is int
        value = found.get(name, field.default)
        if value is MISSING:
            raise TrainError("recipe.field", path=path, field=f"train.{name}", found="-", allowed="int" if whole else "number")
        low = 0 if name in ("seed", "warmup", "weight_decay", "floor") else 1e-12
        right = type(value) is int if whole else type(value) in (int, float)
        if not right or not low <= value < 2**63:
            raise TrainError(
                "recipe.field", path=path, field=f"train.{name}", found=repr(value), allowed=f"{'int' if whole else 'number'} >= {low:g}"
            )
    return Settings(**found)
