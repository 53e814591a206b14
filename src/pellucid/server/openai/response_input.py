"""A body of /v1/responses as one of /v1/chat/completions. Nothing is kept between requests: a body brings its whole conversation.

instructions, and system and developer messages at the start      one system message
message                                                           a message; its parts are texts
reasoning                                                         reasoning_content of the reply that follows
function_call                                                     tool_calls of the reply before, or of a new one
function_call_output                                              a tool's message
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pellucid.errors import PellucidError, RequestError
from pellucid.runs.request import described, wrong
from pellucid.server.openai.body_fields import BodyFields, is_one_of
from pellucid.server.openai.chat_reply import NAMED
from pellucid.server.openai.jobs import CHAT

TEXTS = {"input_text", "output_text", "text", "refusal"}
ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
KEPT_ELSEWHERE = ("previous_response_id", "conversation", "prompt", "background")  # each needs answers that a server has kept
EXAMPLE = '[{"role": "user", "content": "..."}]'
LOGPROBS = "message.output_text.logprobs"
OWN = {
    *KEPT_ELSEWHERE, "input", "instructions", "max_output_tokens", "text", "tools", "tool_choice", "reasoning", "include", "truncation",
    "top_logprobs", "stream_options", "messages", "n",
}  # fmt: skip
# A chat's fields, and what they are called here.
CHAT_NAMES = {
    "messages": "input", "prompt": "input", "max_completion_tokens": "max_output_tokens", "response_format.json_schema": "text.format",
    "response_format": "text.format", "reasoning_effort": "reasoning.effort", "tool_choice.function": "tool_choice",
}  # fmt: skip
CALL = re.compile(r"messages\[(\d+)\]\.tool_calls\[(\d+)\]\.function")
TOOL = re.compile(r"(tools\[\d+\])\.function")


def chat_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a chat that asks for the same. Fields of both routes, and unknown ones, stay as they are.

    A RequestError for a wrong field, and for one that needs an earlier answer.
    """
    fields = BodyFields(body, CHAT | OWN)
    given = fields.given
    for name in KEPT_ELSEWHERE:
        if given.get(name):
            raise RequestError("serve.stateless", 400, name, name=name)
    if given.get("n", 1) != 1 or given.get("n") is True:
        raise wrong("n", described(given["n"]), "1")
    if given.get("truncation", "disabled") != "disabled":
        raise wrong("truncation", described(given["truncation"]), "disabled")
    out = {name: value for name, value in given.items() if name not in OWN}
    out |= {"messages": messages_of(fields)} | tools_of_body(given) | form_of(fields) | logprobs_of(given)
    if "max_output_tokens" in given:
        out["max_completion_tokens"] = given["max_output_tokens"]
    if (effort := fields.table("reasoning").get("effort")) is not None:
        out["reasoning_effort"] = effort
    fields.table("stream_options")  # of which nothing changes the events of this route
    if given.get("stream"):
        out["stream_options"] = {"include_usage": True}
    return out


def messages_of(fields: BodyFields) -> list[dict[str, Any]]:
    """Return the messages of `instructions` and `input`."""
    items, instructions = fields.given.get("input"), fields.text("instructions")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not isinstance(items, list) or not items:
        raise wrong("input", described(items), f'"..." | {EXAMPLE}')
    turns: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
    reasoning, calls = "", set[str]()
    for i, item in enumerate(items):
        place = f"input[{i}]"
        if not isinstance(item, dict):
            raise wrong(place, described(item), "{}")
        kind = item.get("type", "message")
        if kind == "reasoning":
            reasoning = text_of(item.get("content") or item.get("summary") or [], f"{place}.content", {"reasoning_text", "summary_text"})
            continue
        if kind == "function_call_output":
            if not is_one_of(item.get("call_id"), calls):
                raise wrong(f"{place}.call_id", described(item.get("call_id")), ", ".join(sorted(calls)) or "function_call")
            turns.append({"role": "tool", "tool_call_id": item["call_id"], "content": text_of(item.get("output"), f"{place}.output")})
            continue
        if kind == "function_call":
            call = call_of(item, place)
            calls.add(call["id"])
            if not turns or turns[-1]["role"] != "assistant" or reasoning:
                turns.append({"role": "assistant", "content": ""})
            turns[-1].setdefault("tool_calls", []).append(call)
        elif kind == "message":
            add_message(turns, item, place)
        else:
            raise wrong(f"{place}.type", described(kind), "message | reasoning | function_call | function_call_output")
        if reasoning and turns[-1]["role"] == "assistant":
            turns[-1]["reasoning_content"], reasoning = reasoning, ""
    if len(turns) == bool(instructions):
        raise wrong("input", described(items), EXAMPLE)
    return turns


def add_message(turns: list[dict[str, Any]], item: Mapping[str, Any], place: str) -> None:
    """Append a message. System messages at the start become one, since most templates take no second."""
    if not is_one_of(item.get("role"), ROLES):
        raise wrong(f"{place}.role", described(item.get("role")), " | ".join(ROLES))
    role, text = ROLES[item["role"]], text_of(item.get("content"), f"{place}.content")
    if role == "system" and len(turns) == 1 and turns[0]["role"] == "system":
        turns[0]["content"] += f"\n\n{text}"
    else:
        turns.append({"role": role, "content": text})


def call_of(item: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return a function_call as a call of a chat's message."""
    for name in ("call_id", "name", "arguments"):
        if not isinstance(item.get(name), str):
            raise wrong(f"{place}.{name}", described(item.get(name)), '"..."')
    return {"id": item["call_id"], "type": "function", "function": {"name": item["name"], "arguments": item["arguments"]}}


def text_of(content: Any, place: str, kinds: set[str] = TEXTS) -> str:
    """Return the text of a content: a text, or parts that are texts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong(place, described(content), '"..." | [{"type": "input_text", "text": "..."}]')
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else part
        if not isinstance(part, dict) or not is_one_of(kind, kinds):
            raise wrong(f"{place}[{i}].type", described(kind), " | ".join(sorted(kinds)))
        name = "refusal" if kind == "refusal" else "text"
        if not isinstance(text := part.get(name), str):
            raise wrong(f"{place}[{i}].{name}", described(text), '"..."')
        texts.append(text)
    return "".join(texts)


def tools_of_body(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a chat for `tools` and `tool_choice`."""
    tools = given.get("tools", [])
    chosen = {"tool_choice": given["tool_choice"]} if "tool_choice" in given else {}
    if not isinstance(tools, list):
        raise wrong("tools", described(tools), "[{}]")
    for i, tool in enumerate(tools):
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise wrong(f"tools[{i}].type", described(tool.get("type") if isinstance(tool, dict) else tool), "function")
    if not tools:
        return chosen
    functions = [{name: value for name, value in tool.items() if name not in ("type", "strict")} for tool in tools]
    return {"tools": [{"type": "function", "function": function} for function in functions]} | chosen


def form_of(fields: BodyFields) -> dict[str, Any]:
    """Return the field of a chat for `text.format`."""
    form = fields.table("text").get("format", {})
    if not isinstance(form, dict):
        raise wrong("text.format", described(form), "{}")
    if not form:
        return {}
    kind = form.get("type")
    schema = {name: value for name, value in form.items() if name != "type"}
    return {"response_format": {"type": kind, "json_schema": schema} if kind == "json_schema" else {"type": kind}}


def logprobs_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a chat for `top_logprobs`, and for the log-probabilities that `include` names."""
    included = given.get("include", [])
    if not isinstance(included, list):
        raise wrong("include", described(included), f'["{LOGPROBS}"]')
    top = given.get("top_logprobs", 0)
    wants = top != 0 or type(top) is not int or LOGPROBS in included
    return {"logprobs": True, "top_logprobs": top} if wants else {}


@contextmanager
def renamed(body: Mapping[str, Any]) -> Iterator[None]:
    """Give errors of the chat that a body became the names of this route."""
    try:
        yield
    except PellucidError as fault:
        rename(fault, body)
        raise


def rename(fault: PellucidError, body: Mapping[str, Any]) -> None:
    """Give a chat's error the names that its fields have in the body of this route."""
    if isinstance(fault, RequestError) and fault.param:
        fault.param = own_name(fault.param, body)
    fault.values = dict(fault.values)
    for key, value in fault.values.items():
        if key in ("name", "place", "one", "other") and isinstance(value, str):
            fault.values[key] = own_name(value, body)
        elif key == "allowed":
            fault.values[key] = str(value).replace(NAMED, '{"type": "function", "name": "..."}')


def own_name(name: str, body: Mapping[str, Any]) -> str:
    """Return what a chat's field is called in a body of this route, unless the body has it by that name.

    The calls of a chat's messages are those of `input`, in order.
    """
    if (call := CALL.match(name)) is not None:
        turns = messages_of(BodyFields(body, CHAT | OWN))
        before = sum(len(turn.get("tool_calls", ())) for turn in turns[: int(call[1])]) + int(call[2])
        items = [i for i, item in enumerate(body["input"]) if item.get("type") == "function_call"]
        return f"input[{items[before]}]{name[call.end() :]}"
    sent = body.keys() - OWN
    for chat, own in CHAT_NAMES.items():
        if chat.partition(".")[0] not in sent and re.match(rf"{re.escape(chat)}\b", name):
            return own + name.removeprefix(chat)
    return TOOL.sub(r"\1", name)
