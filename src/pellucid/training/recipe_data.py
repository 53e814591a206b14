"""The [data] table of a recipe, checked: texts, a folder of facts, or one of words to invent facts from."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from pellucid.errors import TrainError
from pellucid.training.chats import PAIR as COMPLETED
from pellucid.training.chats import Asked, Chats
from pellucid.training.corpus import corpora
from pellucid.training.invented import WORDS, Invented, most_facts
from pellucid.training.objectives import Data
from pellucid.training.pairs import COMPARED, Pairs
from pellucid.training.recipe_tables import known, number, require, wrong
from pellucid.training.texts import MixedSource, Texts

CHAT, PREFER, REWARD, DISTIL = "chat", "prefer", "reward", "distil"
NUMBERS = {"texts": 1, "facts": 2, "copies": 0, "length": 2}
"""The least of each number that a corpus of invented facts needs in [data]."""
CHOICES = {"pack": ("documents", "stream", "none"), "long": ("split", "drop", "cut", "refuse")}
CHAT_CHOICES = {"pack": ("documents", "none"), "long": ("refuse", "drop", "cut")}
PAIR_CHOICES = {"pack": ("documents",), "long": CHAT_CHOICES["long"]}


class TextForm(NamedTuple):
    """What [data] of texts is for an objective. kind: its settings.  names: of fields that it may have, several of a line."""

    kind: type[Texts]
    choices: dict[str, tuple[str, ...]]
    names: tuple[str, ...] = ()


FORMS = {
    "causal": TextForm(Texts, CHOICES),
    CHAT: TextForm(Chats, CHAT_CHOICES, COMPLETED),
    PREFER: TextForm(Pairs, PAIR_CHOICES, COMPARED),
    REWARD: TextForm(Asked, CHAT_CHOICES | {"pack": ("none",)}, COMPLETED),
    DISTIL: TextForm(Texts, CHOICES),
}
LONGEST_ROW = 1 << 20
FILES = '["text/*.txt", ...]'


def texts_of(path: Path, root: Path, given: dict[str, Any], objective: str) -> Texts:
    """Return the [data] table of a recipe of texts, checked. Its files are looked for when the data is prepared."""
    known(path, "data.", given, {f.name for f in fields(Texts)} - {"root"})
    if objective not in FORMS:
        raise TrainError("recipe.field", path=path, field="objective", found=repr(objective), allowed=", ".join(FORMS))
    if "source" in given:
        given = given | {"files": [file for one in sources_of(path, given) for file in one["files"]]}
    form, field, files = FORMS[objective], given.get("field", "text"), given["files"]
    several = isinstance(field, list) and len(field) == len(form.names) and all(isinstance(name, str) and name for name in field)
    one = form.kind is not Pairs
    fields_allowed = ", ".join((["str"] if one else []) + ([json.dumps(form.names)] if form.names else []))
    right = {
        "files": (patterns(files), FILES),
        "field": ("field" not in given or (one and isinstance(field, str)) or several, fields_allowed),
        "length": (type(length := given.get("length", 2)) is int and 2 <= length <= LONGEST_ROW, f"int 2 … {LONGEST_ROW}"),
        "cache": (type(given.get("cache", True)) is bool, "true, false"),
        "held_out": (type(share := given.get("held_out", 0)) in (int, float) and 0 <= share <= 0.5, "number 0 … 0.5"),
        **{field: (field not in given or given[field] in allowed, ", ".join(allowed)) for field, allowed in form.choices.items()},
    }
    require(path, "data", given, right)
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    if "source" in given:
        values["source"] = tuple(MixedSource(tuple(one["files"]), float(one.get("weight", 1))) for one in given["source"])
    return form.kind(root, **values)


def sources_of(path: Path, given: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tables [[data.source]], checked."""
    if "files" in given:
        raise TrainError("recipe.one", path=path, fields="data.files, data.source")
    tables = given["source"]
    if not isinstance(tables, list) or not tables or not all(isinstance(one, dict) for one in tables):
        raise TrainError("recipe.field", path=path, field="data.source", found=repr(tables), allowed="[[data.source]]")
    for one in tables:
        known(path, "data.source.", one, {f.name for f in fields(MixedSource)})
        right = {
            "files": (patterns(one.get("files")), FILES),
            "weight": (number(one.get("weight", 1), 0), "number > 0"),
        }
        require(path, "data.source", one, right)
    return tables


def patterns(files: object) -> bool:
    """True for a list of patterns of files."""
    return isinstance(files, list) and bool(files) and all(isinstance(file, str) and file for file in files)


def data_of(path: Path, root: Path, given: dict[str, Any], objective: str) -> Data:
    """Return the data that the [data] table names: texts, a folder of facts, or one of words to invent facts from, with its numbers."""
    if "files" in given or "source" in given:
        return texts_of(path, root, given, objective)
    name = given.get("folder")
    if not isinstance(name, str):
        raise wrong(path, "data.folder", name, "str")
    if name.startswith("pellucid/") and name not in corpora():
        raise TrainError("recipe.field", path=path, field="data.folder", found=repr(name), allowed=", ".join(corpora()))
    folder = corpora().get(name, root / name)
    try:
        invented = (folder / WORDS).exists()
    except (OSError, ValueError):  # a name that no folder can have
        raise TrainError("recipe.field", path=path, field="data.folder", found=repr(name[:80]), allowed="str") from None
    if not invented:
        known(path, "data.", given, {"folder"})
        return folder
    known(path, "data.", given, {"folder", *NUMBERS})
    if objective not in (allowed := ("causal", "prefix", DISTIL)):
        raise TrainError("recipe.field", path=path, field="objective", found=repr(objective), allowed=", ".join(allowed))
    most = {"facts": most_facts(folder)}
    for field, least in NUMBERS.items():
        value, high = given.get(field), most.get(field, 2**31)
        if type(value) is not int or not least <= value <= high:
            raise TrainError("recipe.field", path=path, field=f"data.{field}", found=repr(value), allowed=f"int {least} … {high}")
    return Invented(folder, **{field: given[field] for field in NUMBERS})
