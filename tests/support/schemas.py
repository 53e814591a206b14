"""JSON schemas of the kinds that JSONSchemaBench (arXiv 2501.10868) collects, drawn from a seed."""

from collections.abc import Callable
from random import Random
from typing import Any

Schema = dict[str, Any]
WORDS = ["name", "city", "count", "id", "tags", "price", "é", "when", "owner", "kind", "state", "note"]


def text(r: Random) -> Schema:
    return {"type": "string", "maxLength": r.randint(1, 8)} | ({"minLength": 1} if r.random() < 0.3 else {})


def number(r: Random) -> Schema:
    low = r.randint(-50, 50)
    kinds: list[Schema] = [
        {"type": "integer", "minimum": low, "maximum": low + r.randint(0, 500)},
        {"type": "number", "exclusiveMinimum": low, "maximum": low + 9.5},
        {"type": "integer", "minimum": 0, "maximum": 90, "multipleOf": 5},
    ]
    return r.choice(kinds)


def choice(r: Random) -> Schema:
    return r.choice([{"enum": ["a b", 3, None, True, "日本"]}, {"const": r.choice(["fixed", 7])}, {"type": "boolean"}, {"type": "null"}])


def formatted(r: Random) -> Schema:
    return {"type": "string", "format": r.choice(["date", "time", "date-time", "uuid", "ipv4", "email"])}


def pattern(r: Random) -> Schema:
    return {"type": "string", "pattern": r.choice(["^[A-Z]{2}[0-9]{1,4}$", "^(red|green|blue)$", r"^\d{3}-\d{4}$", "^[a-f0-9]{8}$"])}


def array(r: Random) -> Schema:
    least = r.randint(0, 2)
    return {"type": "array", "items": simple(r), "minItems": least, "maxItems": least + r.randint(0, 2)}


def tuple_(r: Random) -> Schema:
    return {"type": "array", "prefixItems": [simple(r) for _ in range(2)], "items": False, "minItems": 2}


def record(r: Random, inner: Callable[[Random], Schema] | None = None) -> Schema:
    names = r.sample(WORDS, r.randint(1, 4))
    own = {n: (inner or simple)(r) for n in names}
    return {"type": "object", "properties": own, "required": r.sample(names, r.randint(0, len(names))), "additionalProperties": False}


def nested(r: Random) -> Schema:
    return record(r, lambda r: r.choice([record, array, simple])(r))


def any_of(r: Random) -> Schema:
    return {"anyOf": [simple(r), record(r), {"type": "null"}]}


def all_of(r: Random) -> Schema:
    first, second = record(r), record(r)
    for part in (first, second):
        del part["additionalProperties"]
    second["properties"] = {n: own for n, own in second["properties"].items() if n not in first["properties"]}
    second["required"] = [n for n in second["required"] if n in second["properties"]]
    return {"allOf": [first, second], "properties": first["properties"] | second["properties"], "additionalProperties": False}


def referenced(r: Random) -> Schema:
    return {"$defs": {"part": record(r)}, "type": "array", "items": {"$ref": "#/$defs/part"}, "minItems": 1, "maxItems": 2}


def recursive(r: Random) -> Schema:
    node = {"type": "object", "properties": {"value": number(r), "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}}}
    return {"$defs": {"node": node | {"required": ["value", "next"], "additionalProperties": False}}, "$ref": "#/$defs/node"}


def mapping(r: Random) -> Schema:
    return {"type": "object", "properties": {"id": text(r)}, "required": ["id"], "additionalProperties": number(r)}


def call(r: Random) -> Schema:
    arguments = record(r)
    own = {"name": {"const": "look_up"}, "arguments": arguments}
    return {"type": "object", "properties": own, "required": ["name", "arguments"], "additionalProperties": False}


def nullable(r: Random) -> Schema:
    own = {n: {"type": [r.choice(["integer", "boolean"]), "null"]} for n in r.sample(WORDS, 2)}
    return {"type": "object", "properties": own, "required": list(own), "additionalProperties": False, "title": "t", "description": "d"}


def simple(r: Random) -> Schema:
    return r.choice([text, number, choice, pattern])(r)


KINDS = [
    text,
    number,
    choice,
    formatted,
    pattern,
    array,
    tuple_,
    record,
    nested,
    any_of,
    all_of,
    referenced,
    recursive,
    mapping,
    call,
    nullable,
]


def schemas(count: int) -> list[tuple[str, Schema]]:
    """Return this number of schemas, all kinds in turn, each with the name of its kind."""
    return [(KINDS[i % len(KINDS)].__name__, KINDS[i % len(KINDS)](Random(i))) for i in range(count)]
