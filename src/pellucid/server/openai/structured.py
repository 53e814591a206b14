"""The form of an answer, as OpenAI's, vLLM's and llama.cpp's clients ask for it.

response_format       {"type": "json_object"} | {"type": "json_schema", "json_schema": {"schema": {...}}}
response_format       {"type": "json_object", "schema": {...}}                               llama.cpp's
structured_outputs    {"json" | "regex" | "choice" | "grammar" | "json_object": ...}         vLLM's
guided_json, guided_regex, guided_choice, guided_grammar                                     vLLM's, before
json_schema, grammar                                                                         llama.cpp's
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pellucid.engine.grammar import GrammarConstraint
from pellucid.errors import RequestError, UseError
from pellucid.runs.request import described, wrong
from pellucid.server.openai.body_fields import BodyFields

if TYPE_CHECKING:
    from pellucid.server.openai.served_model import ServedModel

FIELDS = {
    "guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar", "json_schema": "json",
    "grammar": "grammar",
}  # fmt: skip
STRUCTURED = {"response_format", "structured_outputs", *FIELDS}
OBJECT: dict[str, Any] = {"type": "object"}
WRAPPED = {"name", "description", "strict"}  # what stands beside a schema in response_format.json_schema
Form = tuple[str, str, Any]  # the field that asks for it, the kind of its grammar, and the grammar


def constraint_of(served: "ServedModel", fields: BodyFields) -> GrammarConstraint | None:
    """Return the constraint of a text that a body asks for, None if it asks for none. A RequestError for one that cannot be held to."""
    return None if (form := wanted_form(fields)) is None else constrained(served, *form)


def wanted_form(fields: BodyFields) -> Form | None:
    """Return the form that a body asks for, None if it asks for none. A RequestError for two, and a wrong field."""
    forms = [*formats(fields), *structured(fields)]
    forms += [(name, kind, checked(fields.given[name], name, kind)) for name, kind in FIELDS.items() if name in fields.given]
    if len(forms) > 1:
        raise RequestError("server.either", 400, forms[1][0], one=forms[0][0], other=forms[1][0])
    return forms[0] if forms else None


def constrained(served: "ServedModel", name: str, kind: str, grammar: Any, around: str | None = None) -> GrammarConstraint:
    """Return the constraint of a grammar. A RequestError that names the field if it cannot be held to. around: see GrammarCompiler."""
    try:
        return served.grammars.compile(kind, grammar, around)
    except UseError as fault:
        raise RequestError("serve.form", 400, name, name=name, reason=fault) from None


def formats(fields: BodyFields) -> list[Form]:
    """Read `response_format`."""
    given, name = fields.table("response_format"), "response_format"
    kind = given.get("type", "text")
    if kind == "text":
        return []
    if kind not in ("json_object", "json_schema"):
        raise wrong("response_format.type", described(kind), "text | json_object | json_schema")
    if given.get("schema") is not None:
        return [(name, "json", checked(given["schema"], "response_format.schema", "json"))]
    if kind == "json_object":
        return [(name, "json", OBJECT)]
    schema = given.get("json_schema")
    if isinstance(schema, dict) and ("schema" in schema or schema.keys() <= WRAPPED):
        schema = schema.get("schema")
    return [(name, "json", checked(schema, "response_format.json_schema.schema", "json"))]


def structured(fields: BodyFields) -> list[Form]:
    """Read `structured_outputs`."""
    given = {name: value for name, value in fields.table("structured_outputs").items() if value not in (None, False)}
    forms: list[Form] = []
    for name, value in given.items():
        field = f"structured_outputs.{name}"
        if name == "json_object":
            forms.append((field, "json", OBJECT))
        elif name in ("json", "regex", "choice", "grammar"):
            forms.append((field, name, checked(value, field, name)))
        else:
            raise wrong("structured_outputs", described(name), "json | regex | choice | grammar | json_object")
    return forms


def checked(value: Any, name: str, kind: str) -> Any:
    """Return the value of a field that holds a grammar. A RequestError for one of a wrong kind."""
    fits: dict[str, tuple[Callable[[Any], bool], str]] = {
        "json": (lambda v: isinstance(v, dict | str), '{} | "{}"'),
        "choice": (lambda v: isinstance(v, list) and bool(v) and all(isinstance(one, str) and one for one in v), '["..."]'),
    }
    fit, allowed = fits.get(kind, (lambda v: isinstance(v, str) and bool(v), '"..."'))
    if not fit(value):
        raise wrong(name, described(value), allowed)
    return value
