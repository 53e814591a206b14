"""Documents before the schemas that ship. Each schema is read and checked once: to check one takes longer than to judge a document."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

import pellucid

SCHEMAS = Path(pellucid.__file__).parent / "schemas"


@cache
def judge_of(name: str) -> jsonschema.Draft202012Validator:
    """Return the judge of the documents that a command prints."""
    schema = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def accept(document: Any, name: str) -> None:
    """Raise jsonschema's ValidationError if the schema of this name refuses a document."""
    judge_of(name).validate(document)


def refused(document: Any, name: str) -> bool:
    """Return whether the schema of this name refuses a document."""
    return not judge_of(name).is_valid(document)
