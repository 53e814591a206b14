"""What a run's folder keeps beside its states, so that any of its steps can be taken again.

run/run.json   the identity of the run, and the first step that it holds for     run/recipe.toml   a copy of the recipe
run/tokenizer.json
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from pellucid.checkpoint.disk import read_whole, reason, replacing
from pellucid.checkpoint.json_file import read_object
from pellucid.checkpoint.opening import recorded_runs
from pellucid.distributed import ALONE
from pellucid.errors import PellucidError, TrainError, UseError
from pellucid.training.identity import MACHINE
from pellucid.training.recipe import RECIPE_BYTES, Recipe

RUN, RECIPE, TOKENIZER = "run.json", "recipe.toml", "tokenizer.json"
SCHEMA = 1


@dataclass(frozen=True)
class RunFile:
    """The content of run.json. root: the folder that the recipe's files are relative to.

    since: the step after which all steps were taken with this identity; other than 0 if the run moved to another machine there.
    """

    root: Path
    since: int
    identity: dict[str, Any]


def write_run(folder: Path, recipe: Recipe, tokenizer: Tokenizer, identity: dict[str, Any], step: int) -> None:
    """Write what a folder keeps of a run that goes on from `step`. A damaged run.json is written anew, and holds from there."""
    since = 0
    if (folder / RUN).exists() and step:
        try:
            before = read_run(folder)
            known = {"ranks": str(ALONE), **before.identity}  # of a run that is older than the field
            same = all(known.get(name) == identity[name] for name in MACHINE)
        except TrainError:
            same = False
        since = before.since if same else step
    about = {"schema": SCHEMA, "root": str(recipe.root.resolve()), "since": since, "identity": identity}
    content = {
        RECIPE: read_whole(recipe.path, RECIPE_BYTES, TrainError),
        TOKENIZER: tokenizer.to_str(pretty=True).encode(),
        RUN: (json.dumps(about, indent=1) + "\n").encode(),
    }
    for name, raw in content.items():
        try:
            with replacing(folder / name, TrainError) as part:
                part.write_bytes(raw)
        except OSError as fault:
            raise TrainError("train.folder", folder=folder, reason=reason(fault)) from None


def read_run(folder: Path) -> RunFile:
    """Return the content of a run's run.json. A TrainError if the folder has none, or a damaged one."""
    if not (folder / RUN).is_file():
        raise TrainError("replay.none", folder=folder, name=RUN)
    try:
        about = read_object(folder / RUN, error=TrainError)
    except PellucidError:
        about = {}
    root, since, identity = (about.get(name) for name in ("root", "since", "identity"))
    if not (isinstance(root, str) and type(since) is int and isinstance(identity, dict)):
        raise TrainError("run.damaged", path=folder / RUN)
    return RunFile(Path(root), since, identity)


def recipe_place(name: str | Path) -> Path:
    """Return the path of a recipe: of a run that ships, by its name, or the path that `name` is. A UseError for another specimen."""
    text, shipped = str(name), recorded_runs()
    if text in shipped:
        return shipped[text] / RECIPE
    if text.startswith("pellucid/") and not Path(name).exists():
        raise UseError("recipe.shipped", name=text, known=", ".join(shipped))
    return Path(name)
