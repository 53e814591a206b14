"""Documents before the schemas that ship, compiled to Python once: judged as they are, a long run's document takes a second."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import fastjsonschema

import pellucid

SCHEMAS = Path(pellucid.__file__).parent / "schemas"
Refused = fastjsonschema.JsonSchemaValueException


def schema_of(name: str) -> dict[str, Any]:
    """Return the schema of this name."""
    schema: dict[str, Any] = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
    return schema


def draft_7(schema: Any) -> Any:
    """Return a schema of draft 2020-12 in the words of draft 7, which is compiled: tuples, and what stands beside a reference."""
    if isinstance(schema, list):
        return [draft_7(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: draft_7(value) for key, value in schema.items() if key != "$schema"}
    if "prefixItems" in out:
        out["additionalItems"] = out.pop("items", True)
        out["items"] = out.pop("prefixItems")
    if "$ref" in out and len(out) > 1:
        out["allOf"] = [{"$ref": out.pop("$ref")}]
    return out


@cache
def judge_of(name: str, part: str = "") -> Callable[[Any], Any]:
    """Return what raises Refused for a document that the schema of this name refuses, or its definition `part`."""
    schema = schema_of(name) | ({"$ref": f"#/$defs/{part}"} if part else {})
    judge: Callable[[Any], Any] = fastjsonschema.compile(draft_7(schema), use_default=False, use_formats=False)
    return judge


def accept(document: Any, name: str) -> None:
    """Raise Refused if the schema of this name refuses a document."""
    judge_of(name)(document)


def refused(document: Any, name: str) -> bool:
    """Return whether the schema of this name refuses a document."""
    try:
        accept(document, name)
    except Refused:
        return True
    return False
