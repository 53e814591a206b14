"""A document's definition: a TypedDict, from whose annotations its JSON Schema and the page's TypeScript type follow.

    class Token(TypedDict):
        id: Count                                    "id": {"type": "integer", "minimum": 0}       id: number;
        text: Annotated[str | None, "no piece"]      "text": {"type": ["string", "null"]}           text: string | null; // no piece

Annotated carries rules of JSON Schema as a `Constraint`, the comment of the TypeScript type as a text, and in `As` the type that JSON holds
where Python holds a plainer one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

Setting = float | str | bool | list[float] | dict[str, float] | None
PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean", NoneType: "null"}
TYPESCRIPT = {int: "number", float: "number", str: "string", bool: "boolean", NoneType: "null"}


@dataclass(frozen=True)
class Constraint:
    """A rule of JSON Schema beside the type."""

    minimum: int | None = None
    pattern: str | None = None

    @property
    def rules(self) -> dict[str, Any]:
        """Return the rules that are set, as JSON Schema has them."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class As:
    """The type that JSON holds, where Python holds a plainer one: a pair as a list."""

    type: Any


Count = Annotated[int, Constraint(minimum=0)]
Path = Annotated[str, Constraint(pattern=r"^[A-Za-z_][\w.]*$")]
RunId = Annotated[str, Constraint(pattern="^[0-9a-f]{32}$")]  # under which the server keeps it
Row = Annotated[int, Constraint(minimum=-1)]  # of a step; -1 is its last


def parts(hint: Any) -> tuple[Any, dict[str, Any], str, bool]:
    """Return the bare type of an annotation, its rules, its comment, and True if the field may be absent."""
    rules, comment, absent = dict[str, Any](), "", False
    while get_origin(hint) in (Annotated, NotRequired):
        inner, *extras = get_args(hint)
        absent = absent or get_origin(hint) is NotRequired
        for extra in extras:
            if isinstance(extra, As):
                inner = extra.type
            elif isinstance(extra, Constraint):
                rules |= extra.rules
            else:
                assert isinstance(extra, str), extra
                comment = extra
        hint = inner
    return hint, rules, comment, absent


def fields(document: Any) -> dict[str, Any]:
    """Return the annotations of a document's fields."""
    return get_type_hints(document, include_extras=True)


def documents_in(hint: Any) -> Iterator[Any]:
    """Yield every document that an annotation names, itself and those within."""
    hint = parts(hint)[0]
    if is_typeddict(hint):
        yield hint
        for own in fields(hint).values():
            yield from documents_in(own)
    elif get_origin(hint) is not Literal:
        for own in get_args(hint):
            yield from documents_in(own)


def schema_of(hint: Any) -> dict[str, Any]:
    """Return the JSON Schema of an annotation; a document is a reference into `$defs`."""
    bare, rules, _, _ = parts(hint)
    arguments = get_args(bare)
    if is_typeddict(bare):
        return {"$ref": f"#/$defs/{bare.__name__}"} | rules
    if bare in PLAIN:
        return {"type": PLAIN[bare]} | rules
    if get_origin(bare) is Literal:
        return ({"const": arguments[0]} if len(arguments) == 1 else {"enum": list(arguments)}) | rules
    if get_origin(bare) is list:
        return {"type": "array", "items": schema_of(arguments[0])} | rules
    if get_origin(bare) is tuple:
        return {"type": "array", "prefixItems": list(map(schema_of, arguments)), "items": False, "minItems": len(arguments)} | rules
    if get_origin(bare) is dict:
        return {"type": "object", "additionalProperties": schema_of(arguments[1])} | rules
    if get_origin(bare) in (Union, UnionType):
        return {"anyOf": list(map(schema_of, arguments))} | rules
    raise TypeError(hint)


def document_schema(document: Any) -> dict[str, Any]:
    """Return the JSON Schema of a document's object. Fields are required unless NotRequired, and no others are allowed."""
    own = fields(document)
    return {
        "type": "object",
        "properties": {name: schema_of(hint) for name, hint in own.items()},
        "required": [name for name, hint in own.items() if not absent(document, name, hint)],
        "additionalProperties": False,
    }


def absent(document: Any, name: str, hint: Any) -> bool:
    """True if a field may be absent."""
    return parts(hint)[3] or name in document.__optional_keys__


def definitions(*documents: Any) -> dict[str, Any]:
    """Return the `$defs` of these documents and of all within, by name."""
    every = {inner.__name__: inner for document in documents for inner in documents_in(document)}
    return {name: document_schema(every[name]) for name in sorted(every)}


def typescript_of(hint: Any) -> str:
    """Return the TypeScript type of an annotation."""
    bare = parts(hint)[0]
    arguments = get_args(bare)
    if is_typeddict(bare):
        return str(bare.__name__)
    if bare in TYPESCRIPT:
        return TYPESCRIPT[bare]
    if get_origin(bare) is Literal:
        return " | ".join(f'"{x}"' if isinstance(x, str) else str(x).lower() for x in arguments)
    if get_origin(bare) is list:
        item = typescript_of(arguments[0])
        return f"({item})[]" if " | " in item else f"{item}[]"
    if get_origin(bare) is tuple:
        return f"[{', '.join(map(typescript_of, arguments))}]"
    if get_origin(bare) is dict:
        return f"Record<string, {typescript_of(arguments[1])}>"
    if get_origin(bare) in (Union, UnionType):
        return " | ".join(dict.fromkeys(map(typescript_of, arguments)))
    raise TypeError(hint)


def interface(document: Any) -> str:
    """Return a document as a TypeScript interface, its comments at the ends of lines."""
    lines = [f"export interface {document.__name__} {{"]
    for name, hint in fields(document).items():
        comment = parts(hint)[2]
        sign = "?" if absent(document, name, hint) else ""
        lines.append(f"  {name}{sign}: {typescript_of(hint)};" + (f" // {comment}" if comment else ""))
    return "\n".join([*lines, "}"])


def interfaces(*documents: Any, known: Iterable[Any] = ()) -> str:
    """Return the TypeScript interfaces of these documents and of all within, by name. known: documents that another file has."""
    elsewhere = {inner.__name__ for document in known for inner in documents_in(document)}
    every = {inner.__name__: inner for document in documents for inner in documents_in(document)}
    return "\n\n".join(interface(every[name]) for name in sorted(every.keys() - elsewhere))
