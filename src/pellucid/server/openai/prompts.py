"""The prompts of a body as ids: texts, ids, or messages by the model's chat template."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pellucid.checkpoint.json_file import parse_object
from pellucid.errors import RequestError, TokenizerError, UseError
from pellucid.runs.request import described, wrong
from pellucid.server.openai.body_fields import BodyFields, is_one_of, note_ignored
from pellucid.tokenizer.chat import KEYS
from pellucid.tokenizer.chat_template import choose

if TYPE_CHECKING:
    from pellucid.server.openai.served_model import ServedModel

LEGACY = ("function_call", "audio")  # fields of a message that templates cannot show: refused, unless they are empty
TEXT_PARTS = {"text": "text", "refusal": "refusal"}  # kinds of parts of a content, and the field with each one's text


def prompts_of(served: "ServedModel", fields: BodyFields, name: str = "prompt") -> list[tuple[list[int], str | None]]:
    """Return the ids of each prompt, with its text if it was one: the field is a text, ids, or a list of texts or of ids."""
    given = fields.given.get(name)
    allowed = '"...", ["..."], [ids], [[ids]]'
    several: list[Any]
    if isinstance(given, str):
        several = [given]
    elif isinstance(given, list) and given:
        several = [given] if all(type(i) is int for i in given) else given
    else:
        raise wrong(name, described(given), allowed)
    special = fields.truth("add_special_tokens", True)
    out: list[tuple[list[int], str | None]] = []
    for i, one in enumerate(several):
        place = name if len(several) == 1 else f"{name}[{i}]"
        if isinstance(one, str):
            ids = served.tokenizer.encode(one, special=special)
            out.append((ids, one))
        elif isinstance(one, list):
            check_prompt_ids(one, place, served.vocab)
            ids = one
            out.append((ids, None))
        else:
            raise wrong(place, described(one), allowed)
        if not ids:
            raise wrong(place, described(one), "1..")
    return out


def check_prompt_ids(ids: list[Any], place: str, vocab: int) -> None:
    """Raise a RequestError unless these are token ids."""
    for i, id in enumerate(ids):
        if type(id) is not int or not 0 <= id < vocab:
            raise wrong(f"{place}[{i}]", described(id), f"0..{vocab - 1}")


def chat_prompt(served: "ServedModel", fields: BodyFields, tools: Sequence[dict[str, Any]] | None = None) -> list[int]:
    """Return the ids that the model's chat template makes of `messages`, with the `tools` that it may show."""
    messages = fields.given.get("messages")
    if not isinstance(messages, list) or not messages:
        raise wrong("messages", described(messages), '[{"role": "user", "content": "..."}]')
    continues = fields.truth("continue_final_message")
    generates = fields.truth("add_generation_prompt", not continues)
    if continues and generates:
        raise wrong("add_generation_prompt", "true", "continue_final_message=false")
    turns = [plain_message(m, f"messages[{i}]") for i, m in enumerate(messages)]
    effort = {"reasoning_effort": fields.text("reasoning_effort")} if "reasoning_effort" in fields.given else {}
    settings = effort | fields.table("chat_template_kwargs")
    try:
        if "developer" not in choose(served.tokenizer.templates, served.name, None, bool(tools)).source:
            turns = [turn | {"role": "system"} if turn.get("role") == "developer" else turn for turn in turns]
        listed_tools = None if tools is None else list(tools)
        return served.tokenizer.chat(turns, listed_tools, continues, add_generation_prompt=generates, settings=settings)
    except TokenizerError as fault:
        if fault.key == "template.missing":
            raise RequestError("serve.template", 400, "messages", model=served.name) from None
        if "file" in fault.values:  # a path of this machine
            fault.values = {**fault.values, "file": served.name}
        raise


def plain_call(call: Any, place: str) -> Any:
    """Return a call of a message with its arguments as an object, as templates take them; OpenAI's are JSON in a text, or an empty one.

    What is no object stays the text that it is: a client shows a model its own broken call, so that it writes another.  A RequestError for
    a call without a name or arguments, at which a template would fail without a word of where.
    """
    if not isinstance(call, dict):
        return call
    function = call.get("function")
    if not isinstance(function, dict):
        raise wrong(f"{place}.function", described(function), '{"name": "...", "arguments": "{}"}')
    if not isinstance(name := function.get("name"), str):
        raise wrong(f"{place}.function.name", described(name), '"..."')
    if not isinstance(arguments := function.get("arguments"), str | dict):
        raise wrong(f"{place}.function.arguments", described(arguments), '"{}"')
    if isinstance(arguments, dict):
        return call
    try:
        own = parse_object((arguments.strip() or "{}").encode(), f"{place}.function.arguments", UseError)
    except UseError:
        return call
    return call | {"function": function | {"arguments": own}}


def plain_message(message: Any, place: str) -> Any:
    """Return a message whose content is one text; OpenAI's may be a list of parts, of which texts alone are read here.

    Clients send a reply back as they got it: empty fields are left out, and unknown ones are ignored, as those of a body.
    """
    if not isinstance(message, dict):
        raise wrong(place, described(message), "{}")
    note_ignored(f"messages[].{name}" for name in message.keys() - {*KEYS, *LEGACY, "refusal", "annotations"})
    message = {name: value for name, value in message.items() if name in KEYS or (name in LEGACY and value)}
    if message.get("tool_calls") == []:
        del message["tool_calls"]
    if message.get("role") == "assistant" and message.get("content") is None and not message.get("tool_calls"):
        message["content"] = ""
    if isinstance(calls := message.get("tool_calls"), list):
        message["tool_calls"] = [plain_call(call, f"{place}.tool_calls[{i}]") for i, call in enumerate(calls)]
    if not isinstance(parts := message.get("content"), list):
        return message
    texts = []
    for i, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else part
        text = part.get(TEXT_PARTS[str(kind)]) if isinstance(part, dict) and is_one_of(kind, TEXT_PARTS) else None
        if not isinstance(text, str):
            raise wrong(f"{place}.content[{i}].type", described(kind), '"text"')
        texts.append(text)
    return message | {"content": "".join(texts)}
