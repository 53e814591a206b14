"""Fields of a recipe given beside it, `train --set train.steps=10`: the recipe as a file of its own, which the run keeps as any other."""

import json
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pellucid.checkpoint.disk import read_whole
from pellucid.errors import PellucidError, TrainError
from pellucid.training.recipe import RECIPE_BYTES


@contextmanager
def changed(path: Path, changes: Sequence[str]) -> Iterator[Path]:
    """Yield the path of a recipe with changed fields, "table.field=value" each; the recipe itself without changes.

    A value is read as TOML; what is no TOML is a text. The file is gone afterwards, so an error that names it names the recipe.
    """
    if not changes:
        yield path
        return
    try:
        tables = tomllib.loads(read_whole(path, RECIPE_BYTES, TrainError).decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise TrainError("recipe.toml", path=path, reason=fault) from None
    for change in changes:
        put(tables, change)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / path.name
        made.write_text(toml(tables), encoding="utf-8")
        try:
            yield made
        except PellucidError as fault:
            rename(fault, str(made), str(path))
            raise


def rename(fault: PellucidError, old: str, new: str) -> None:
    """Let an error that names the file `old` name `new`."""
    fault.values = {name: str(value).replace(old, new) if old in str(value) else value for name, value in fault.values.items()}
    fault.args = (fault.line(),)


def put(tables: dict[str, Any], change: str) -> None:
    """Set one field. A TrainError unless it has the form field=value, or table.field=value."""
    name, equals, text = change.partition("=")
    table, dot, field = name.strip().rpartition(".")
    own = tables.setdefault(table, {}) if dot else tables
    if not equals or not field or not isinstance(own, dict):
        raise TrainError("recipe.set", found=change)
    try:
        value = tomllib.loads(f"x = {text}")["x"]
    except (tomllib.TOMLDecodeError, RecursionError):
        value = text.strip()
    own[field] = value


def toml(tables: dict[str, Any]) -> str:
    """Return tables as TOML: fields first, then a table each."""
    plain = {name: value for name, value in tables.items() if not isinstance(value, dict)}
    lines = [f"{quoted(name)} = {written(value)}" for name, value in plain.items()]
    for name, table in tables.items():
        if isinstance(table, dict):
            lines += ["", f"[{quoted(name)}]", *(f"{quoted(field)} = {written(value)}" for field, value in table.items())]
    return "\n".join(lines) + "\n"


def quoted(text: str) -> str:
    """Return a string as TOML, which has JSON's escapes."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def written(value: object) -> str:
    """Return a value as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(name)} = {written(one)}" for name, one in value.items()) + "}"
    return str(value) if not isinstance(value, float) else repr(value)
