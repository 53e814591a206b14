"""The grammar of a reply, in each format of calls: reasoning, then calls of tools, or content of a given form, or either.

The names of calls are the tools' own, and the arguments fit their schemas. `@form` stands for the grammar of the content.
A special token of the vocabulary is written by its id, since a text can never hold it.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from pellucid.server.openai.tool_formats import CLOSES, Schemas

MOST = 8  # calls in one reply
Mark = Callable[[str], str]  # writes a mark as the vocabulary has it


def quoted(text: str) -> str:
    """Write a text in a Lark grammar."""
    return json.dumps(text, ensure_ascii=False)


def schema_of(schema: Mapping[str, Any]) -> str:
    """Write a schema in a Lark grammar, with few spaces between tokens."""
    return "%json " + json.dumps({**schema, "x-guidance": {"whitespace_flexible": True, "whitespace_pattern": "[ \\n\\t]{0,24}"}})


def object_call(name: str, schema: Mapping[str, Any], key: str) -> str:
    """Write {"name": ..., KEY: ...}."""
    head = '{"name": ' + json.dumps(name) + f', "{key}": '
    return f"{quoted(head)} {schema_of(schema)} {quoted('}')}"


def glm_call(name: str, schema: Mapping[str, Any], mark: Mark) -> str:
    """Write a call of GLM's: each argument between tags, those that are required and, after them, those that are not."""
    required, parts = schema.get("required") or [], [quoted(f"{name}\n")]
    properties: Mapping[str, Any] = schema.get("properties") or {}
    for key in sorted(properties, key=lambda key: key not in required):
        own = properties[key]
        if isinstance(own, dict) and own.get("type") == "string":
            options = own.get("enum")
            value = "(" + " | ".join(map(quoted, options)) + ")" if options else "/[^<]*/"
        else:
            value = schema_of(own if isinstance(own, dict) else {})
        one = f"{quoted(f'<arg_key>{key}</arg_key>')} {quoted(chr(10))} {quoted('<arg_value>')} {value} {quoted('</arg_value>' + chr(10))}"
        parts.append(one if key in required else f"({one})?")
    return " ".join([mark("<tool_call>"), *parts, mark("</tool_call>")])


def grammar_of(kind: str | None, source: str, schemas: Schemas, most: int, inside: bool, mark: Mark, form: bool = False) -> str:
    """Return the Lark grammar of a reply with 1 to `most` calls of these tools, if there are any; or, with `form`, with content of a form.

    kind: the name of a format of tool_formats, None for a reply without calls.  source: the template.
    inside: the prompt has begun to think.
    """
    replies, lines = calls_of(kind, source, schemas, most, mark) if kind is not None and schemas else ([], [])
    first = ""
    if kind == "harmony":
        first, end, start = "analysis? ", mark("<|end|>"), mark("<|start|>")
        lines += [f"analysis: {mark('<|channel|>')} {quoted('analysis')} {mark('<|message|>')} TEXT {end} {start} {quoted('assistant')}"]
        replies += [f"{mark('<|channel|>')} {quoted('final')} {mark('<|message|>')} @form"] if form else []
    else:
        replies += ["@form"] if form else []
        if inside:
            first, special = "thinking ", mark(CLOSES).startswith("<[")
            lines += [f"thinking: TEXT {mark(CLOSES)} /\\n{{0,2}}/" if special else "thinking: thought /\\n{0,2}/"]
            lines += [] if special else [f"thought[lazy]: TEXT {quoted(CLOSES)}"]
    lines += ["TEXT: /(.|\\n)*/"] if first else []
    return "\n".join([f"start: {first}({' | '.join(replies)})", *lines]) + "\n"


def calls_of(kind: str, source: str, schemas: Schemas, most: int, mark: Mark) -> tuple[list[str], list[str]]:
    """Return the expression of 1 to `most` calls, in a list, and the rules that it needs. See grammar_of."""
    calls, between, around = list[str](), quoted("\n"), "{}"
    for name, schema in schemas.items():
        if kind == "hermes":
            own = object_call(name, schema, "arguments")
            calls.append(f"{mark('<tool_call>')} {quoted(chr(10))} {own} {quoted(chr(10))} {mark('</tool_call>')}")
        elif kind == "llama":
            calls.append(object_call(name, schema, "parameters"))
            most = 1
        elif kind == "mistral" and "[ARGS]" in source:
            calls.append(f"{mark('[TOOL_CALLS]')} {quoted(name)} {mark('[ARGS]')} {schema_of(schema)}")
            between = ""
        elif kind == "mistral":
            calls.append(object_call(name, schema, "arguments"))
            between, around = quoted(", "), f"{mark('[TOOL_CALLS]')} {quoted('[')} {{}} {quoted(']')}"
        elif kind == "deepseek":
            fenced = "```json" in source
            head = f'"function" {mark("<｜tool▁sep｜>")} {quoted(name)} {quoted(chr(10) + "```json" + chr(10))}'
            head = head if fenced else f"{quoted(name)} {mark('<｜tool▁sep｜>')}"
            tail = quoted("\n```") if fenced else ""
            calls.append(f"{mark('<｜tool▁call▁begin｜>')} {head} {schema_of(schema)} {tail} {mark('<｜tool▁call▁end｜>')}")
            between = between if fenced else ""
            around = f"{mark('<｜tool▁calls▁begin｜>')} {{}} {mark('<｜tool▁calls▁end｜>')}"
        elif kind == "glm":
            calls.append(glm_call(name, schema, mark))
        else:
            head = f"{mark('<|channel|>')} {quoted(f'commentary to=functions.{name} ')} {mark('<|constrain|>')} {quoted('json')}"
            calls.append(f"{head} {mark('<|message|>')} {schema_of(schema)}")
            most = 1
    lines = [f"call: {' | '.join(f'call_{i}' for i in range(len(calls)))}", *(f"call_{i}: {call}" for i, call in enumerate(calls))]
    several = "call" if most == 1 else f"call ({between} call){{0,{most - 1}}}"
    return [around.format(several)], lines
