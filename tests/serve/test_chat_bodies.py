"""Bodies of chats as agents and frameworks write them: what they send back of a reply, and forms beside tools and reasoning."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from openai_served import OpenAiServed, openai_served
from pellucid.api.model import load
from pellucid.engine.grammar import GrammarCompiler
from pellucid.server.openai import prompts
from tiny import swapped
from tool_templates import tool_model

PATH = "/v1/chat/completions"
CITY = {"type": "object", "properties": {"city": {"enum": ["Paris", "Tokyo"]}}, "required": ["city"], "additionalProperties": False}
DAYS = {"type": "object", "properties": {"days": {"enum": [1, 2]}}, "required": ["days"], "additionalProperties": False}
TOOLS: list[Any] = [{"type": "function", "function": {"name": name, "parameters": CITY}} for name in ("weather", "time")]
FORM = {"type": "json_schema", "json_schema": {"name": "days", "strict": True, "schema": DAYS}}
ASK: list[dict[str, Any]] = [{"role": "user", "content": "?"}]
KINDS = ("hermes", "thinking", "llama", "mistral", "deepseek", "glm", "harmony")
# As Llama 3's, it refuses a message with a list of calls that is empty.
STRICT = (
    "{% for m in messages %}{% if 'tool_calls' in m and m.tool_calls | length != 1 %}{{ raise_exception('one call') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}."
    "{% endfor %}{{ reasoning_effort or '' }}{# <tool_call> #}{{ tools | map(attribute='function.name') | join(' ') if tools else '' }}"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAiServed]:
    models = [tool_model(tmp_path_factory.mktemp("bodies") / "model", kind) for kind in KINDS]
    for name, source in (("strict", STRICT), ("developers", "{# developer #}" + STRICT)):
        folder = tmp_path_factory.mktemp("strict") / "secret-place"
        tool_model(folder, "hermes")
        (folder / "chat_template.jinja").write_text(source, encoding="utf-8")
        models.append(load(folder))
        models[-1].name = name
    with openai_served(*models, tokens=16_384) as served:
        yield served


def prompt(server: OpenAiServed, messages: list[dict[str, Any]], model: str = "strict", **fields: Any) -> str:
    """Return the text of the prompt that a template makes of messages."""
    ids = server.post("/tokenize", model=model, messages=messages, **fields)["tokens"]
    text: str = server.post("/detokenize", model=model, tokens=ids)["prompt"]
    return text


CALL = {"id": "call_1", "type": "function", "function": {"name": "time", "arguments": ""}}
BROKEN = {"id": "call_1", "type": "function", "function": {"name": "time", "arguments": '{"city": "Pa'}}  # ended by length, shown again
# A message as a client sends it, and what the template writes of it.
SENT: list[tuple[dict[str, Any], str]] = [
    ({"role": "assistant", "content": "x", "tool_calls": []}, "<assistant>x"),
    ({"role": "assistant", "content": "x", "tool_calls": None, "refusal": None, "audio": None, "function_call": None}, "<assistant>x"),
    ({"role": "assistant", "content": "x", "annotations": [], "provider_specific_fields": {"a": 1}, "id": "msg_1"}, "<assistant>x"),
    ({"role": "assistant", "content": None}, "<assistant>"),
    ({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, "<assistant>no"),
    ({"role": "assistant", "content": "", "tool_calls": [CALL]}, "<assistant>time{}"),
    ({"role": "assistant", "content": "", "tool_calls": [BROKEN]}, r'<assistant>time"{\"city\": \"Pa"'),
    ({"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}]}, "<tool>42"),
    ({"role": "developer", "content": "Be brief."}, "<system>Be brief."),
]


def misread(server: OpenAiServed) -> list[dict[str, Any]]:
    """Return the messages that are refused, or of which the template writes something else."""
    out = []
    for message, written in SENT:
        reply = server.client.post("/tokenize", json={"model": "strict", "messages": [*ASK, message]})
        if reply.status_code != 200 or prompt(server, [*ASK, message]) != f"<user>?.{written}.":
            out.append(message)
    return out


def test_a_message_is_read_as_clients_send_it(server: OpenAiServed) -> None:
    assert misread(server) == []


def test_messages_mutant(server: OpenAiServed) -> None:
    """Messages that are handed on as they came are seen; null fields and developers are others' work."""
    with swapped(prompts, "plain_message", lambda message, place: message):
        unseen = (SENT[1][0], {"role": "assistant", "content": "", "tool_calls": [BROKEN]}, SENT[-1][0])
        assert misread(server) == [message for message, _ in SENT if message not in unseen]
    with swapped(prompts, "plain_call", lambda call, place: {**call, "function": {"name": "time", "arguments": {}}}):
        assert misread(server) == [{"role": "assistant", "content": "", "tool_calls": [BROKEN]}]


def test_a_developer_is_the_system_where_a_template_knows_none(server: OpenAiServed) -> None:
    turns = [{"role": "developer", "content": "Be brief."}]
    assert prompt(server, turns) == prompt(server, [{"role": "system", "content": "Be brief."}])
    assert prompt(server, turns, "developers").startswith("<developer>")


def test_a_wrong_part_of_a_call_is_named(server: OpenAiServed) -> None:
    for call, place in (
        ({"id": "1"}, "function"), ({"id": "1", "function": "time"}, "function"), ({"function": {"arguments": "{}"}}, "function.name"),
        ({"function": {"name": "time"}}, "function.arguments"), ({"function": {"name": "time", "arguments": 5}}, "function.arguments"),
    ):  # fmt: skip
        field = f"messages[1].tool_calls[0].{place}"
        turns = [*ASK, {"role": "assistant", "content": None, "tool_calls": [call]}]
        assert server.wrong(PATH, 400, field, model="strict", messages=turns)["message"].startswith(f"{field} is ")


def test_a_prompt_that_is_too_long_is_the_messages(server: OpenAiServed) -> None:
    for path, field, body in ((PATH, "messages", {"messages": ASK}), ("/v1/responses", "input", {"input": "?"})):
        error = server.wrong(path, 400, field, model="strict", max_completion_tokens=2**20, **body)
        assert error["code"] == "context_length_exceeded" and "more are asked for" in error["message"]


def test_effort_is_the_templates(server: OpenAiServed) -> None:
    for how in ({"reasoning_effort": "low"}, {"chat_template_kwargs": {"reasoning_effort": "low"}, "reasoning_effort": "high"}):
        assert prompt(server, ASK, **how) == "<user>?.low"
    assert server.post(PATH, model="strict", messages=ASK, max_tokens=1, reasoning_effort="low")["usage"]["prompt_tokens"] > 8
    server.wrong(PATH, 400, "reasoning_effort", model="strict", messages=ASK, reasoning_effort=3)
    server.wrong("/v1/responses", 400, "reasoning.effort", model="strict", input="?", reasoning={"effort": 3})


def test_a_choice_among_some_tools(server: OpenAiServed) -> None:
    """The template shows those alone, and a reply calls no other."""
    entry = {"type": "function", "function": {"name": "time"}}
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [entry]}}
    assert prompt(server, ASK, tools=TOOLS).endswith("weather time")
    for seed in range(3):
        body = {"model": "hermes", "messages": ASK, "tools": TOOLS, "tool_choice": choice, "max_tokens": 300, "seed": seed}
        calls = server.post(PATH, **body, logit_bias=short(server, "hermes"))["choices"][0]["message"].get("tool_calls", [])
        assert {call["function"]["name"] for call in calls} <= {"time"}
    few, all_of_them = (
        server.post(PATH, model="strict", messages=ASK, tools=TOOLS, max_tokens=0, **how)["usage"]["prompt_tokens"]
        for how in ({"tool_choice": choice | {"allowed_tools": {"mode": "auto", "tools": [entry]}}}, {})
    )
    assert few < all_of_them
    wrong = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "x"}}]}}
    server.wrong(PATH, 400, "tool_choice.allowed_tools.tools[0]", model="hermes", messages=ASK, tools=TOOLS, tool_choice=wrong)


def short(server: OpenAiServed, kind: str) -> dict[str, int]:
    """Return biases with which a random model writes no spaces and ends its thoughts at once."""
    served = server.models[kind]
    pieces = served.tokenizer.pieces(range(served.vocab))
    ends = {str(p.id): 100 for p in pieces if p.text in ("</think>", "<|end|>")}
    return {str(p.id): -100 for p in pieces if p.raw and not p.raw.strip()} | ends


def form_faults(server: OpenAiServed, kind: str, wanted: frozenset[str] | set[str] = frozenset(), **how: Any) -> list[str]:
    """Return what is wrong with a random model's replies under a form: each is of the form or calls a tool. wanted: what must come."""
    faults, seen, biases = list[str](), set[str](), short(server, kind)
    for seed in range(6 if wanted else 1):
        body = {"model": kind, "messages": ASK, "response_format": FORM, "max_tokens": 300, "temperature": 1, "seed": seed, **how}
        (choice,) = server.post(PATH, **body, logit_bias=biases)["choices"]
        message = choice["message"]
        if choice["finish_reason"] == "length":
            continue
        calls = [call["function"] for call in message.get("tool_calls", ())]
        seen.add("call" if calls else "form")
        try:
            for call in calls:
                jsonschema.validate(json.loads(call["arguments"]), CITY)
            if not calls:
                jsonschema.validate(json.loads(message["content"]), DAYS)
        except (ValueError, jsonschema.ValidationError) as fault:
            faults.append(str(fault))
        deltas = [chunk["choices"][0]["delta"] for chunk in server.stream(PATH, **body, logit_bias=biases)] if not seed else [message]
        if "".join(delta.get("content") or "" for delta in deltas) != (message["content"] or ""):
            faults.append("stream")
    return faults if seen and seen >= wanted else [*faults, f"only {seen}"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.quick(4)
def test_a_form_beside_tools_and_reasoning(server: OpenAiServed, kind: str) -> None:
    """Reasoning that the prompt has begun comes first; where tools are offered, a reply is of the form or calls one."""
    assert form_faults(server, kind) == []
    assert form_faults(server, kind, tools=TOOLS) == []
    assert form_faults(server, kind, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "time"}}) == []


def test_forms_mutant(server: OpenAiServed) -> None:
    """A form that holds from the first token leaves a thought open, and lets no tool be called."""
    assert form_faults(server, "hermes", {"form", "call"}, tools=TOOLS) == []
    compile = GrammarCompiler.compile
    with swapped(GrammarCompiler, "compile", lambda self, kind, source, around=None: compile(self, kind, source)):
        assert form_faults(server, "thinking")
        assert form_faults(server, "hermes", {"form", "call"}, tools=TOOLS) == ["only {'form'}"]


def test_what_a_tool_cannot_be_held_to_is_named(server: OpenAiServed) -> None:
    odd = [{"type": "function", "function": {"name": "a", "parameters": {"not": {}}}}]
    form = {"type": "json_object", "schema": {"not": {}}}
    server.wrong(PATH, 400, "tools", model="hermes", messages=ASK, tools=odd, response_format=FORM)
    server.wrong(PATH, 400, "response_format", model="hermes", messages=ASK, tools=TOOLS, response_format=form)


def test_an_error_names_no_file_of_this_machine(server: OpenAiServed) -> None:
    error = server.wrong(PATH, 400, None, model="strict", messages=[*ASK, {"role": "assistant", "tool_calls": [CALL, CALL]}])
    assert "one call" in error["message"] and "secret-place" not in error["message"]


@pytest.mark.parametrize(
    "fields", [{"prediction": {"type": "content", "content": "a"}}, {"modalities": ["text"]}, {"prompt_cache_retention": "24h"}]
)
def test_fields_that_change_nothing(server: OpenAiServed, fields: dict[str, Any]) -> None:
    server.post(PATH, model="strict", messages=ASK, max_tokens=1, **fields)


@pytest.mark.parametrize(
    "fields", [{"modalities": ["text", "audio"]}, {"web_search_options": {}}, {"messages": [*ASK, {"role": "user", "audio": {"id": "a"}}]}]
)
def test_fields_that_would_change_an_answer(server: OpenAiServed, fields: dict[str, Any]) -> None:
    name = next(iter(fields))
    server.wrong(PATH, 400, "messages[1].audio" if name == "messages" else name, **{"model": "strict", "messages": ASK, **fields})
