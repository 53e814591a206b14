"""GET /openapi.json: the routes and their fields as an OpenAPI document, for programs that read one.

The names are those that the routes read, so that a field which a route reads and this does not describe is a KeyError.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from pellucid.engine.text import LONGEST, MOST
from pellucid.server.openai.body_fields import BIG, RANGES
from pellucid.server.openai.embedder import KNOWN as EMBEDDINGS
from pellucid.server.openai.jobs import CHAT, COMPLETION, MOST_LOGPROBS, MOST_TEXTS, TOKENIZE
from pellucid.server.openai.response_input import KEPT_ELSEWHERE
from pellucid.server.openai.response_input import OWN as RESPONSE

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
TRUTH: Schema = {"type": "boolean"}
TABLE: Schema = {"type": "object"}
IDS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}}
TEXTS: Schema = {"type": "array", "items": TEXT, "minItems": 1}


def integer(least: int, most: int) -> Schema:
    """Return the schema of a whole number within bounds."""
    return {"type": "integer", "minimum": least, "maximum": most}


def choice(*names: str) -> Schema:
    """Return the schema of one of these texts."""
    return {"type": "string", "enum": list(names)}


MESSAGES: Schema = {
    "type": "array", "minItems": 1,
    "items": {
        "type": "object", "required": ["role"],
        "properties": {"role": TEXT, "content": {"anyOf": [TEXT, {"type": "array", "items": TABLE}, {"type": "null"}]}},
    },
}  # fmt: skip
STOP: Schema = {"type": "string", "maxLength": LONGEST}
TOOLS: Schema = {"type": "array", "items": TABLE, "maxItems": 128}
FIELDS: dict[str, Schema] = {
    **{name: {"type": "number", "minimum": least, "maximum": most} for name, (least, most) in RANGES.items()},
    "model": TEXT, "prompt": {"anyOf": [TEXT, TEXTS, IDS, {"type": "array", "items": IDS, "minItems": 1}]}, "messages": MESSAGES,
    "max_tokens": integer(0, BIG), "max_completion_tokens": integer(0, BIG), "min_tokens": integer(0, BIG), "n": integer(1, MOST_TEXTS),
    "seed": integer(-(2**63), 2**63 - 1), "top_k": integer(-1, BIG), "priority": integer(-BIG, BIG),
    "stop": {"anyOf": [STOP, {"type": "array", "items": STOP | {"minLength": 1}, "maxItems": MOST}]},
    "logit_bias": {"type": "object", "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}},
    "stream": TRUTH, "stream_options": {"type": "object", "properties": {"include_usage": TRUTH}}, "ignore_eos": TRUTH, "echo": TRUTH,
    "stop_token_ids": IDS, "skip_special_tokens": TRUTH, "return_token_ids": TRUTH, "add_special_tokens": TRUTH, "suffix": TEXT,
    "response_format": {
        "type": "object", "properties": {"type": choice("text", "json_object", "json_schema"), "json_schema": TABLE, "schema": TABLE},
    },
    "structured_outputs": TABLE, "guided_json": {"anyOf": [TABLE, TEXT]}, "guided_regex": TEXT, "guided_choice": TEXTS,
    "guided_grammar": TEXT, "json_schema": {"anyOf": [TABLE, TEXT]}, "grammar": TEXT, "top_logprobs": integer(0, MOST_LOGPROBS),
    "pellucid": {"type": "object", "properties": {"watch": {"anyOf": [TEXT, TEXTS]}, "edit": {"anyOf": [TEXT, TEXTS]}}},
    "add_generation_prompt": TRUTH, "continue_final_message": TRUTH, "chat_template_kwargs": TABLE, "tools": TOOLS,
    "tool_choice": {"anyOf": [choice("auto", "none", "required"), TABLE]}, "parallel_tool_calls": TRUTH, "return_token_strs": TRUTH,
    "input": {"anyOf": [TEXT, TEXTS, IDS, {"type": "array", "items": IDS, "minItems": 1}]}, "encoding_format": choice("float", "base64"),
    "dimensions": integer(1, BIG), "instructions": TEXT, "max_output_tokens": integer(0, BIG), "text": TABLE, "reasoning": TABLE,
    "reasoning_effort": TEXT, "include": {"type": "array", "items": TEXT}, "truncation": choice("disabled"), "tokens": IDS,
}  # fmt: skip
COMPLETION_LOGPROBS, CHAT_LOGPROBS = integer(0, MOST_LOGPROBS), TRUTH
CHAT_ONLY = {"messages", "n", "stream_options", "response_format", "max_completion_tokens", "max_tokens", "logprobs"}
ERROR: Schema = {
    "type": "object", "required": ["error"],
    "properties": {"error": {
        "type": "object", "required": ["message", "type", "param", "code"],
        "properties": {"message": TEXT, "type": TEXT, "param": {"type": ["string", "null"]}, "code": TEXT},
    }},
}  # fmt: skip


def nullable(schema: Schema) -> Schema:
    """Return a schema that allows null too, which every field of a body may be."""
    return {"anyOf": [schema, {"type": "null"}]}


def body_of(names: Iterable[str], required: Iterable[str] = (), **own: Schema) -> Schema:
    """Return the request body of fields that may be left out. own: those that mean something else on this route."""
    fields = {name: own.get(name) or FIELDS[name] for name in sorted(names)}
    properties = {name: field if name in required else nullable(field) for name, field in fields.items()}
    schema = {"type": "object", "properties": properties, "required": sorted(required)}
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def answers(*kinds: str) -> dict[str, Any]:
    """Return the responses of a route: an answer of some kinds, or an error."""
    content = {kind: {"schema": TABLE if kind == "application/json" else TEXT} for kind in kinds}
    failed = {"description": "an error", "content": {"application/json": {"schema": ERROR}}}
    return {"200": {"description": "the answer"} | ({"content": content} if content else {}), "default": failed}


def openapi(version: str, models: Sequence[str]) -> dict[str, Any]:
    """Return the document of a server of these models."""
    named = {"model": choice(*models) if models else TEXT}
    json, events = "application/json", "text/event-stream"
    response = (CHAT | RESPONSE) - {*KEPT_ELSEWHERE, *CHAT_ONLY}
    items: Schema = {"anyOf": [TEXT, {"type": "array", "items": TABLE, "minItems": 1}]}
    posts = {
        "/v1/completions": (body_of(COMPLETION, ["prompt"], **named, logprobs=COMPLETION_LOGPROBS), (json, events)),
        "/v1/chat/completions": (body_of(CHAT, ["messages"], **named, logprobs=CHAT_LOGPROBS), (json, events)),
        "/v1/responses": (body_of(response, ["input"], **named, input=items), (json, events)),
        "/v1/responses/input_tokens": (body_of(response, ["input"], **named, input=items), (json,)),
        "/v1/embeddings": (body_of(EMBEDDINGS, ["input"], **named), (json,)),
        "/tokenize": (body_of(TOKENIZE, **named), (json,)),
        "/detokenize": (body_of({"model", "tokens"}, ["tokens"], **named), (json,)),
    }
    gets = {"/v1/models": json, "/health": "", "/version": json, "/metrics": "text/plain", "/openapi.json": json}
    model = {"name": "model", "in": "query", "required": False, "schema": named["model"]}
    name = {"name": "name", "in": "path", "required": True, "schema": TEXT | {"minLength": 1}}
    paths: dict[str, Any] = {path: {"post": {"requestBody": body, "responses": answers(*kinds)}} for path, (body, kinds) in posts.items()}
    paths |= {path: {"get": {"responses": answers(*([kind] if kind else []))}} for path, kind in gets.items()}
    paths["/v1/models/{name}"] = {"get": {"parameters": [name], "responses": answers(json)}}
    earlier = {"name": "id", "in": "path", "required": True, "schema": TEXT | {"minLength": 1}}
    failed = {"default": answers(json)["default"]}  # no answer is kept
    paths["/v1/responses/{id}"] = {method: {"parameters": [earlier], "responses": failed} for method in ("get", "delete", "post")}
    paths["/tokenizer_info"] = {"get": {"parameters": [model], "responses": answers(json)}}
    return {"openapi": "3.1.0", "info": {"title": "pellucid serve", "version": version}, "paths": paths}
