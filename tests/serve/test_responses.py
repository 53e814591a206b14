"""/v1/responses: the reply of a chat as items, the same by events, and a conversation that a body brings whole."""

import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

import openai
import pytest

from openai_served import OpenAiServed, chat_folder, on_a_socket, openai_served
from pellucid.api.model import Model, load
from pellucid.server.openai import response_input, response_items
from pellucid.server.openai.body_fields import BodyFields
from pellucid.server.openai.response_items import ResponseItems
from tiny import swapped
from tool_templates import tool_model

PATH, CHAT = "/v1/responses", "/v1/chat/completions"
PROMPT = "The capital of Japan"
CITY = {
    "type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Tokyo"]}}, "required": ["city"],
    "additionalProperties": False,
}  # fmt: skip
USER = {"role": "user", "content": PROMPT}
TOOL = {"type": "function", "name": "weather", "parameters": CITY, "strict": True}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Model]:
    path = tmp_path_factory.mktemp("responses")
    return [load(chat_folder(path / "chatty")), tool_model(path / "tools", "hermes")]


@pytest.fixture(scope="module")
def server(models: list[Model]) -> Iterator[OpenAiServed]:
    with openai_served(*models, tokens=8192) as served:
        yield served


@pytest.fixture(scope="module")
def names(models: list[Model]) -> tuple[str, str]:
    """The names of a model that chats, and of one that calls tools."""
    return models[0].name, models[1].name


def events(server: OpenAiServed, **body: Any) -> list[dict[str, Any]]:
    """Return the events of a stream. Fails unless each is named by its type and numbered in order."""
    with server.client.stream("POST", PATH, json={"stream": True, **body}) as reply:
        assert reply.status_code == 200
        lines = [line for line in reply.iter_lines() if line]
    out = [json.loads(line.removeprefix("data: ")) for line in lines[1::2]]
    assert [line.removeprefix("event: ") for line in lines[::2]] == [e["type"] for e in out]
    assert [e["sequence_number"] for e in out] == list(range(len(out)))
    return out


def nameless(document: Any) -> Any:
    """Return a document without ids and times, which differ from one answer to the next."""
    if isinstance(document, dict):
        return {k: nameless(v) for k, v in document.items() if k not in ("id", "item_id", "created_at", "call_id")}
    return [nameless(v) for v in document] if isinstance(document, list) else document


def faults(seen: Sequence[dict[str, Any]]) -> list[str]:
    """Return what is wrong of a stream's events: items and parts must open and close once, and deltas join to what closes them."""
    out, texts, opened = list[str](), dict[str, str](), dict[str, str]()
    for event in seen:
        kind, id = event["type"], event.get("item_id") or event.get("item", {}).get("id")
        if kind == "response.output_item.added":
            out += [f"{id} opens in {opened}"] * bool(opened)
            opened[id], texts[id] = event["item"]["type"], ""
        elif kind == "response.output_item.done":
            out += [f"{id} closes"] * (opened.pop(id, None) is None)
            item = event["item"]
            text = item["arguments"] if item["type"] == "function_call" else "".join(part["text"] for part in item["content"])
            out += [f"{id}: {texts[id]!r} is not {text!r}"] * (texts[id] != text)
        elif kind.endswith(".delta"):
            out += [f"{id} grows unopened"] * (id not in opened)
            texts[id] = texts.get(id, "") + event["delta"]
    return out + [f"{id} stays open" for id in opened]


def test_a_response_is_a_chats_reply(server: OpenAiServed, names: tuple[str, str]) -> None:
    how: dict[str, Any] = {"model": names[0], "temperature": 0}
    chat = server.post(CHAT, messages=[{"role": "user", "content": PROMPT}], max_completion_tokens=8, **how)
    answer = server.post(PATH, input=PROMPT, max_output_tokens=8, **how)
    (item,) = answer["output"]
    assert item["type"] == "message" and item["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert answer["object"] == "response" and answer["store"] is False and answer["temperature"] == 0
    assert answer["status"] == item["status"] == {"stop": "completed", "length": "incomplete"}[chat["choices"][0]["finish_reason"]]
    assert {k: answer["usage"][k] for k in ("input_tokens", "output_tokens", "total_tokens")} == {
        "input_tokens": chat["usage"]["prompt_tokens"], "output_tokens": chat["usage"]["completion_tokens"],
        "total_tokens": chat["usage"]["total_tokens"],
    }  # fmt: skip


def test_a_stream_is_the_answer(server: OpenAiServed, names: tuple[str, str]) -> None:
    how: dict[str, Any] = {
        "model": names[0],
        "input": PROMPT,
        "temperature": 0,
        "max_output_tokens": 8,
        "top_logprobs": 2,
        "ignore_eos": True,
    }
    how["ignore_eos"] = True
    server.post(PATH, **how)  # both of what follows find the prompt's rows stored
    seen, answer = events(server, **how), server.post(PATH, **how)
    assert faults(seen) == [] and nameless(seen[-1]["response"]) == nameless(answer)
    assert [e["type"] for e in seen[:4]] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    ]  # fmt: skip
    entries = answer["output"][0]["content"][0]["logprobs"]
    assert [e for event in seen if event["type"].endswith("text.delta") for e in event["logprobs"]] == entries
    assert all(len(e["top_logprobs"]) == 2 for e in entries) and len(entries) > 1


def test_every_token_has_a_log_probability(server: OpenAiServed, names: tuple[str, str]) -> None:
    """Also bytes of a character, of which the last alone shows text, and the token that ends the text."""
    how: dict[str, Any] = {
        "model": names[0], "input": PROMPT, "temperature": 0, "max_output_tokens": 8, "structured_outputs": {"regex": "éü"},
        "include": [response_input.LOGPROBS],
    }  # fmt: skip
    answer, seen = server.post(PATH, **how), events(server, **how)
    entries = answer["output"][0]["content"][0]["logprobs"]
    assert b"".join(bytes(e["bytes"]) for e in entries[:4]).decode() == answer["output"][0]["content"][0]["text"] == "éü"
    assert len(entries) == answer["usage"]["output_tokens"] == 5
    assert [e for event in seen if event["type"].endswith("text.delta") for e in event["logprobs"]] == entries and faults(seen) == []


def test_the_tokens_of_an_input(server: OpenAiServed, names: tuple[str, str]) -> None:
    for body in (
        {"input": PROMPT, "instructions": "Be brief."},
        {"input": [USER, USER]},
        {"model": names[1], "input": "?", "tools": [TOOL]},
    ):
        how = {"model": names[0], **body}
        counted = server.post(f"{PATH}/input_tokens", **how)
        used = server.post(PATH, max_output_tokens=1, **how)["usage"]["input_tokens"]
        assert counted == {"object": "response.input_tokens", "input_tokens": used}
    server.wrong(f"{PATH}/input_tokens", 400, "tools[0].name", model=names[1], input="?", tools=[{"type": "function"}])


def test_too_few_tokens_leave_it_incomplete(server: OpenAiServed, names: tuple[str, str]) -> None:
    answer = server.post(PATH, model=names[0], input=PROMPT, max_output_tokens=1, temperature=0, ignore_eos=True)
    assert answer["status"] == "incomplete" and answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert events(server, model=names[0], input=PROMPT, max_output_tokens=1, ignore_eos=True)[-1]["type"] == "response.incomplete"


def test_a_form_is_kept_to(server: OpenAiServed, names: tuple[str, str]) -> None:
    form = {"type": "json_schema", "name": "city", "schema": CITY, "strict": True}
    answer = server.post(PATH, model=names[0], input=PROMPT, text={"format": form}, seed=3)
    assert json.loads(answer["output"][-1]["content"][0]["text"])["city"] in ("Paris", "Tokyo") and answer["text"]["format"] == form


def test_a_call_and_its_output(server: OpenAiServed, names: tuple[str, str]) -> None:
    """A forced call is an item of its own, and its output goes back beside it as a chat would have it."""
    how: dict[str, Any] = {"model": names[1], "tools": [TOOL], "parallel_tool_calls": False, "max_output_tokens": 600}
    tries = ((seed, events(server, input="?", tool_choice="required", seed=seed, **how)) for seed in range(8))
    seed, seen = next((seed, seen) for seed, seen in tries if seen[-1]["type"] == "response.completed")
    assert faults(seen) == []
    calls = [item for item in seen[-1]["response"]["output"] if item["type"] == "function_call"]
    assert calls and all(call["name"] == "weather" and json.loads(call["arguments"])["city"] in ("Paris", "Tokyo") for call in calls)
    named = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]}
    other = server.post(PATH, input="?", tool_choice=named, seed=seed, **how)
    assert nameless(other["output"]) == nameless(seen[-1]["response"]["output"])
    outputs = [{"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"} for call in calls]
    conversation = [{"role": "user", "content": "?"}, *seen[-1]["response"]["output"], *outputs]
    again = server.post(PATH, input=conversation, **how | {"max_output_tokens": 4})
    assert again["usage"]["input_tokens"] > seen[-1]["response"]["usage"]["input_tokens"]


def test_a_conversation_is_a_chats() -> None:
    """Messages, calls, outputs and reasoning stand where a chat has them; system messages at the start are one."""
    items = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "why"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "c"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "2", "output": "d"},
        {"type": "function_call", "call_id": "3", "name": "f", "arguments": "{}"},
    ]

    def call(id: str, name: str) -> dict[str, Any]:
        return {"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}}

    wanted = [
        {"role": "system", "content": "You help.\n\nBe short."},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "c", "reasoning_content": "why", "tool_calls": [call("1", "f"), call("2", "g")]},
        {"role": "tool", "tool_call_id": "2", "content": "d"},
        {"role": "assistant", "content": "", "tool_calls": [call("3", "f")]},
    ]
    assert response_input.messages_of(BodyFields({"instructions": "You help.", "input": items}, response_input.OWN)) == wanted


DELTAS: list[dict[str, Any]] = [
    {"reasoning_content": "Hm"}, {"reasoning_content": "m."}, {"content": "A"}, {"content": "b"},
    {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "f", "arguments": "{"}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}, {"index": 1, "id": "c2", "function": {"name": "g", "arguments": ""}}]},
    {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]},
]  # fmt: skip


def fed(deltas: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the events of a chat's deltas, and the items in the end."""
    items = ResponseItems()
    seen = [event for delta in deltas for event in items.feed(delta, [])] + [*items.close()]
    return seen, items.items


def test_every_kind_of_item_in_turn() -> None:
    seen, items = fed(DELTAS)
    assert faults(seen) == [] and [i["type"] for i in items] == ["reasoning", "message", "function_call", "function_call"]
    assert [i.get("arguments") or i["content"][0]["text"] for i in items] == ["Hmm.", "Ab", "{}", "{}"]
    assert [(i["name"], i["call_id"]) for i in items[2:]] == [("f", "c1"), ("g", "c2")]


def test_tokens_of_a_message_alone() -> None:
    """What begins reasoning or a call, and shows nothing, is no token of the message; a byte that shows its text later is one."""
    deltas: list[dict[str, Any]] = [
        {"content": ""}, {"reasoning_content": "Hm"}, {"content": ""}, {"content": "A"}, {"content": ""}, {"content": "é"}, {"content": ""},
        {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "f", "arguments": "{}"}}]}, {},
    ]  # fmt: skip
    items = ResponseItems()
    for i, delta in enumerate(deltas):
        list(items.feed(delta, [{"token": i, "bytes": list((delta.get("content") or "").encode())}] if delta else []))
    list(items.close())
    (message,) = (item for item in items.items if item["type"] == "message")
    assert [e["token"] for e in message["content"][0]["logprobs"]] == [3, 4, 5]


def test_mutants() -> None:
    """Items that stay open, and texts that start with what came before them."""
    begin = ResponseItems.begin

    def unclosed(self: ResponseItems, kind: str, **fields: Any) -> Iterator[dict[str, Any]]:
        with swapped(ResponseItems, "close", lambda self, status="completed": iter(())):
            yield from begin(self, kind, **fields)

    def carried(self: ResponseItems, kind: str, **fields: Any) -> Iterator[dict[str, Any]]:
        text = self.text
        yield from begin(self, kind, **fields)
        self.text = text

    for name, mutant in (("begin", unclosed), ("begin", carried)):
        with swapped(ResponseItems, name, mutant):
            assert faults(fed(DELTAS)[0])


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"input": PROMPT, "previous_response_id": "resp_1"}, "previous_response_id"),
    ({"input": PROMPT, "background": True}, "background"),
    ({"input": PROMPT, "truncation": "auto"}, "truncation"),
    ({"input": PROMPT, "n": 2}, "n"),
    ({"input": PROMPT, "n": True}, "n"),
    ({"input": []}, "input"),
    ({}, "input"),
    ({"input": [{"role": "owner", "content": "?"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0].type"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    ({"input": [{"type": "function_call_output", "call_id": "1", "output": "x"}]}, "input[0].call_id"),
    ({"input": PROMPT, "tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"input": PROMPT, "text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"input": PROMPT, "max_output_tokens": -1}, "max_output_tokens"),
    ({"input": PROMPT * 100}, "input"),
    ({"input": PROMPT, "include": "all"}, "include"),
    ({"input": PROMPT, "prompt": {"id": "pmpt_1"}}, "prompt"),
    ({"input": [{"role": "user", "content": [{"type": "input_text", "text": 5}]}]}, "input[0].content[0].text"),
    ({"input": PROMPT, "tool_choice": "required"}, "tool_choice"),
    ({"input": PROMPT, "tool_choice": 5}, "tool_choice"),
    ({"input": PROMPT, "parallel_tool_calls": "x"}, "parallel_tool_calls"),
    ({"input": PROMPT, "top_logprobs": False}, "top_logprobs"),
    ({"input": PROMPT, "top_logprobs": 0.0}, "top_logprobs"),
    ({"input": PROMPT, "stream_options": 5}, "stream_options"),
    ({"input": PROMPT, "max_completion_tokens": -1}, "max_completion_tokens"),
    ({"input": PROMPT, "reasoning": {"effort": 5}}, "reasoning.effort"),
    ({"input": PROMPT, "text": {"format": {"type": "json_schema", "name": "a", "schema": 5}}}, "text.format.schema"),
    ({"input": PROMPT, "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "blob"}}}}, "text.format"),
    ({"input": PROMPT, "tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
    ({"input": PROMPT, "tools": [{"type": "function", "name": "a", "parameters": 5}]}, "tools[0].parameters"),
    ({"input": PROMPT, "tools": [TOOL], "tool_choice": {"type": "function", "name": "b"}}, "tool_choice.name"),
]


@pytest.mark.parametrize(("body", "param"), WRONG)
def test_a_wrong_field_is_named(server: OpenAiServed, names: tuple[str, str], body: dict[str, Any], param: str) -> None:
    error = server.wrong(PATH, 400, param, model=names[0], **body)
    assert param in error["message"] or error["code"] == "context_length_exceeded"
    assert "function" not in error["param"] and "response_format" not in error["message"]


def test_a_wrong_call_is_named_by_its_item(server: OpenAiServed, names: tuple[str, str]) -> None:
    """Two calls in a row are one message of a chat, and instructions another."""
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    deep = call | {"arguments": '{"a": ' + "[" * 62 + "]" * 62 + "}"}
    items = [{"role": "user", "content": PROMPT}, call, deep]
    error = server.post(PATH, 400, model=names[0], instructions="You help.", input=items)["error"]
    assert error["param"].startswith("input[2].arguments.a[0]") and error["message"].startswith(error["param"])


def test_a_wrong_choice_is_told_as_it_is_sent(server: OpenAiServed, names: tuple[str, str]) -> None:
    """What is allowed, and both of two fields that exclude one another, have this route's names."""
    error = server.wrong(PATH, 400, "tool_choice", model=names[1], input=PROMPT, tools=[TOOL], tool_choice="any")
    assert '{"type": "function", "name": "..."}' in error["message"]
    two = {"text": {"format": {"type": "json_object"}}, "structured_outputs": {"regex": "a"}}
    error = server.wrong(PATH, 400, "structured_outputs.regex", model=names[0], input=PROMPT, **two)
    assert "text.format" in error["message"] and "response_format" not in error["message"]


def test_an_input_without_messages_is_told_as_it_is(server: OpenAiServed, names: tuple[str, str]) -> None:
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    for instructions in ("", "Be brief."):
        error = server.wrong(PATH, 400, "input", model=names[0], instructions=instructions, input=[thought])
        assert error["message"].startswith("input is [] (1); allowed is ")


@pytest.mark.parametrize(("model", "shown"), [({}, "null"), ({"model": None}, "null"), ({"model": True}, "true")])
@pytest.mark.parametrize("path", [PATH, CHAT, "/v1/completions", "/v1/embeddings"])
def test_one_of_two_models_must_be_named(
    server: OpenAiServed, names: tuple[str, str], path: str, model: dict[str, Any], shown: str
) -> None:
    error = server.wrong(path, 400, "model", input=PROMPT, **model)
    assert error["message"] == f"model is {shown}; allowed is {names[0]} | {names[1]}"


def test_a_stream_that_fails_ends_as_failed(server: OpenAiServed, names: tuple[str, str]) -> None:
    async def broken(self: Any) -> AsyncGenerator[dict[str, Any], None]:
        raise RuntimeError
        yield {}

    with swapped(response_items.ResponseAnswer, "parts", broken):
        (last,) = events(server, model=names[0], input=PROMPT)
    assert last["type"] == "response.failed" and last["response"]["status"] == "failed" and last["response"]["error"]["message"]


def test_the_openai_client(models: list[Model]) -> None:
    with on_a_socket(*models, tokens=8192) as (address, _):
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="-", max_retries=0)
        answer = client.responses.create(model=models[0].name, input=PROMPT, temperature=0, max_output_tokens=8)
        with client.responses.stream(model=models[0].name, input=PROMPT, temperature=0, max_output_tokens=8) as stream:
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            assert stream.get_final_response().output_text == text == answer.output_text != ""
        tools: Any = [TOOL | {"description": "weather"}]
        called = client.responses.create(model=models[1].name, input="?", tools=tools, tool_choice="required", max_output_tokens=5)
        calls = [item for item in called.output if item.type == "function_call"]
        assert all(call.name == "weather" for call in calls) and called.incomplete_details is not None
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model=models[0].name, input=PROMPT, previous_response_id="resp_1")
        assert caught.value.param == "previous_response_id"
        for ask in (client.responses.retrieve, client.responses.cancel, client.responses.delete):
            with pytest.raises(openai.NotFoundError) as missing:
                ask(answer.id)
            assert missing.value.param == "response_id" and answer.id in missing.value.message
