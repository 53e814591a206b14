"""Calls of tools in each published format: read from a text and from its beginnings, and right by construction where one must come."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

from openai_served import OpenAiServed, on_a_socket, openai_served
from pellucid.server.openai import tool_formats
from pellucid.server.openai.chat_reply import ReplyForm, ReplyStream
from pellucid.server.openai.tool_formats import FORMATS, format_of
from tiny import swapped
from tool_templates import ARGUMENTS, REPLIES, SOURCES, tool_model

PATH = "/v1/chat/completions"
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Tokyo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
NONE: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS = {"weather": CITY, "now": NONE}
TOOLS: list[Any] = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]
ASK = [{"role": "user", "content": "?"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAiServed]:
    models = [tool_model(tmp_path_factory.mktemp("tools") / "model", kind) for kind in SOURCES]
    with openai_served(*models, tokens=8192) as served:
        yield served


def form_of(kind: str) -> ReplyForm:
    return ReplyForm(format_of(SOURCES[kind][0]), kind == "thinking", kind == "thinking", SCHEMAS)


def read_faults(kind: str) -> list[str]:
    """Return what differs of a reply's message, and of the joined deltas of its stream cut into pieces of 1 to 7 characters."""
    text, content, calls = REPLIES[kind]
    message = form_of(kind).message(text)
    wanted = content or None, [(name, arguments) for name, arguments in calls]
    got = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls", ())]
    faults = [] if (message["content"], got) == wanted else [f"message: {message}"]
    for size in (1, 2, 7):
        joined = joined_deltas(form_of(kind), [text[i : i + size] for i in range(0, len(text), size)])
        parsed = [(c["name"], json.loads(c["arguments"])) for c in joined["calls"]]
        if (joined["content"] or None, parsed) != wanted or joined["reasoning"] != message.get("reasoning_content", ""):
            faults.append(f"{size}: {joined}")
    return faults


def joined_deltas(form: ReplyForm, pieces: list[str]) -> dict[str, Any]:
    """Return the message that a client puts together from a stream's deltas."""
    stream, out = ReplyStream(form), {"content": "", "reasoning": "", "calls": list[dict[str, str]]()}
    for i, piece in enumerate(pieces):
        delta = stream.feed(piece, i == len(pieces) - 1)
        out["content"] += delta.get("content", "")
        out["reasoning"] += delta.get("reasoning_content", "")
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                out["calls"].append({"name": call["function"]["name"], "arguments": ""})
            out["calls"][call["index"]]["arguments"] += call["function"]["arguments"]
    return out


@pytest.mark.parametrize("kind", REPLIES)
def test_a_reply_is_read(kind: str) -> None:
    assert read_faults(kind) == []


def test_mutants() -> None:
    """A reader that holds no beginning of a mark back is seen, and one that is cut in the middle of a call."""
    with swapped(tool_formats, "held_back", lambda text, marks, ended: text):
        assert read_faults("hermes") and read_faults("deepseek")
    with swapped(tool_formats, "value_end", lambda text, start: text.find("}", start) + 1 or None):
        assert (
            joined_deltas(form_of("hermes"), ['<tool_call>{"name": "f", "arguments": {"a": {"b": 1}}}'])["calls"][0]["arguments"]
            != '{"a": {"b": 1}}'
        )


def test_formats_are_told_apart() -> None:
    names = {kind: format.name for kind, (source, _) in SOURCES.items() if (format := format_of(source)) is not None}
    assert names == {kind: {"thinking": "hermes"}.get(kind, kind.split()[0]) for kind in SOURCES}
    assert {f.name for f in FORMATS} == set(names.values()) and format_of("{{ tools }}") is None


@pytest.mark.parametrize(
    "text", ["a < b", "no call", "<tool_call>\nnot json", "{", '{"name": 5}', "[TOOL_CALLS]", "", "<", "<|", "<think>", "x<tool_ca"]
)
def test_what_is_no_call_is_content(text: str) -> None:
    for kind in ("hermes", "llama", "mistral", "deepseek", "glm"):
        if not text.startswith("<tool_call>") or kind == "hermes":
            message, joined = form_of(kind).message(text), joined_deltas(form_of(kind), [*text, ""])
            assert message["content"] == joined["content"] == text and "tool_calls" not in message, kind


def test_reasoning_is_apart() -> None:
    opened, inside = ReplyForm(thinks=True), ReplyForm(thinks=True, inside=True)
    for form, text in ((opened, "<think>\nhm < 3\n</think>\n\nParis."), (inside, "hm < 3\n</think>\n\nParis.")):
        assert form.message(text) == {"role": "assistant", "content": "Paris.", "refusal": None, "reasoning_content": "hm < 3"}
        joined = joined_deltas(form, list(text))
        assert (joined["reasoning"], joined["content"]) == ("hm < 3", "Paris.")
        assert form.reasons(text[:12]) and not form.reasons(text)
    assert opened.message("Paris.")["content"] == "Paris." and "reasoning_content" not in opened.message("Paris.")
    assert inside.message("hm")["reasoning_content"] == "hm" and inside.message("hm")["content"] == ""


def call_faults(server: OpenAiServed, kind: str, **how: Any) -> list[str]:
    """Return what is wrong with a random model's forced calls: each is of a tool, its arguments fit, and the stream's are the same."""
    faults, ended = list[str](), 0
    for seed in range(2):
        body = {"model": kind, "messages": ASK, "tools": TOOLS, "max_tokens": 700, "temperature": 1, "seed": seed, **how}
        (choice,) = server.post(PATH, **body)["choices"]
        calls = choice["message"].get("tool_calls", [])
        if choice["finish_reason"] == "length":
            continue
        ended += 1
        if choice["finish_reason"] != "tool_calls" or not calls:
            faults.append(str(choice))
        for call in calls:
            try:
                jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMAS[call["function"]["name"]])
            except (ValueError, KeyError, jsonschema.ValidationError) as fault:
                faults.append(str(fault))
        chunks = server.stream(PATH, **body)
        streamed = [c for chunk in chunks for c in chunk["choices"][0]["delta"].get("tool_calls", ())]
        joined = ["".join(c["function"]["arguments"] for c in streamed if c["index"] == i) for i in range(len(calls))]
        if joined != [c["function"]["arguments"] for c in calls] or chunks[-1]["choices"][0]["finish_reason"] != "tool_calls":
            faults.append(f"stream: {joined}")
    return faults if ended else ["no call ended"]


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.quick(4)
def test_forced_calls_fit_their_schemas(server: OpenAiServed, kind: str) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    if kind != "thinking":
        assert call_faults(server, kind, tool_choice="required", parallel_tool_calls=False) == []
    assert call_faults(server, kind, tool_choice=named) == []


def test_several_calls_and_their_ids(server: OpenAiServed) -> None:
    body = {"messages": ASK, "tools": TOOLS, "tool_choice": "required", "max_tokens": 2000, "temperature": 1}
    counts = []
    for seed in range(4):
        message = server.post(PATH, model="mistral", seed=seed, **body)["choices"][0]["message"]
        counts.append(len(message.get("tool_calls", ())))
        assert all(len(c["id"]) == 9 for c in message.get("tool_calls", ()))
    assert max(counts) > 1


def test_a_free_reply_with_a_call(server: OpenAiServed) -> None:
    """A reply that happens to be a call is one, under any choice but none; its prompt shows the tools unless that is none."""
    text = REPLIES["hermes"][0]
    body = {"model": "hermes", "messages": ASK, "tools": TOOLS, "guided_choice": [text], "max_tokens": 400}
    (choice,) = server.post(PATH, **body)["choices"]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] == "Let me see."
    assert [json.loads(c["function"]["arguments"]) for c in choice["message"]["tool_calls"]] == [ARGUMENTS, {}]
    (other,) = server.post(PATH, **body, tool_choice="none")["choices"]
    assert other["message"]["content"] == text and other["finish_reason"] == "stop"
    prompts = [
        server.post(PATH, model="hermes", messages=ASK, max_tokens=1, **how)["usage"]["prompt_tokens"] for how in ({}, {"tools": TOOLS})
    ]
    assert prompts[1] > prompts[0] + 100
    called = {"role": "assistant", "content": None, "tool_calls": choice["message"]["tool_calls"][:1]}
    turns = [*ASK, called, {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "content": "sunny"}]
    ids = server.post("/tokenize", model="hermes", messages=turns)["tokens"]
    assert "weatherParis" in server.post("/detokenize", model="hermes", tokens=ids)["prompt"]


def test_the_openai_client_calls_tools(server: OpenAiServed) -> None:
    with on_a_socket(server.models["hermes"].model, tokens=8192) as (address, _):
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        how: Any = {"model": "hermes", "messages": ASK, "tools": TOOLS, "max_tokens": 600, "seed": 1, "tool_choice": "required"}
        how["extra_body"] = {"parallel_tool_calls": False}
        answer = client.chat.completions.create(**how)
        calls = answer.choices[0].message.tool_calls
        assert answer.choices[0].finish_reason == "tool_calls" and calls and calls[0].type == "function"
        with client.chat.completions.stream(**how) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion().choices[0].message.tool_calls
        assert final and final[0].function.arguments == calls[0].function.arguments  # type: ignore[union-attr]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"tools": 5}, "tools"),
    ({"tools": [{"type": "function"}]}, "tools[0]"),
    ({"tools": [{"type": "retrieval", "function": {"name": "a"}}]}, "tools[0]"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tools": TOOLS * 2}, "tools[2].function.name"),
    ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice.function.name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": TOOLS, "parallel_tool_calls": "x"}, "parallel_tool_calls"),
    ({"tools": TOOLS, "tool_choice": "required", "guided_regex": "a"}, "tool_choice"),
    ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"not": {}}}}], "tool_choice": "required"}, "tools"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG)
def test_a_wrong_field_is_named(server: OpenAiServed, fields: dict[str, Any], param: str) -> None:
    server.wrong(PATH, 400, param, **{"model": "hermes", "messages": ASK, **fields})
