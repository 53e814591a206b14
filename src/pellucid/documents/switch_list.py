"""The switches that a model offers as JSON: the fields of its Config, what each holds, and what may be written for it."""

from dataclasses import is_dataclass
from typing import Annotated, Final, Literal, TypedDict

from pellucid.api.switching import Field, fields, general, kinds_written, written
from pellucid.runs.model_registry import LoadedModel

SCHEMA: Final = 1
RANGES = ("…", "float")  # signs of what is no list of words


class SwitchDocument(TypedDict):
    """A field that a switch may name, of all layers at once."""

    path: Annotated[str, "* stands for the number of a layer"]
    values: Annotated[list[str], "that it has, of layers that differ each"]
    allowed: Annotated[list[str], "words, and ranges of numbers"]
    listed: Annotated[bool, "true: allowed has every value, and no range"]


class SwitchesDocument(TypedDict):
    """The switches that a model offers."""

    schema: Literal[1]
    model: str
    switches: list[SwitchDocument]


def switches_document(loaded: LoadedModel) -> SwitchesDocument:
    """Return the switches of a model that a text can set to another value; none for an entry of the catalogue, which runs nothing."""
    rows = dict[str, SwitchDocument]()
    for f in fields(loaded.config) if loaded.model is not None else ():
        (path,) = general({f.path: None})
        row = rows.setdefault(path, {"path": path, "values": [], "allowed": [], "listed": True})
        row["values"] += [value for value in [value_of(f)] if value not in row["values"]]
        row["allowed"] += [text for text in kinds_written(f) if text not in row["allowed"] and not text.startswith("pellucid.")]
        row["listed"] = not any(sign in text for text in row["allowed"] for sign in RANGES)
    return {"schema": SCHEMA, "model": loaded.name, "switches": [row for row in rows.values() if set(row["allowed"]) - set(row["values"])]}


def value_of(f: Field) -> str:
    """Write the value of a field; "on" for a spec."""
    value = getattr(f.owner, f.name)
    return "on" if is_dataclass(value) else written(value)
