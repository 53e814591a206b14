"""The prompts of a body as ids: texts, ids, or messages by the model's chat template."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pellucid.checkpoint.json_file import parse_object
from pellucid.errors import RequestError, TokenizerError, UseError
from pellucid.runs.request import described, wrong
from pellucid.server.openai.body_fields import BodyFields

if TYPE_CHECKING:
    from pellucid.server.openai.served_model import ServedModel


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
    settings = fields.table("chat_template_kwargs")
    try:
        listed_tools = None if tools is None else list(tools)
        return served.tokenizer.chat(turns, listed_tools, continues, add_generation_prompt=generates, settings=settings)
    except TokenizerError as fault:
        if fault.key != "template.missing":  # whose line names a file of this machine
            raise
        raise RequestError("serve.template", 400, "messages", model=served.name) from None


def plain_call(call: Any, place: str) -> Any:
    """Return a call of a message with its arguments as an object, as templates take them; OpenAI's are JSON in a text."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(arguments := function.get("arguments"), str):
        return call
    return call | {"function": function | {"arguments": parse_object(arguments.encode(), f"{place}.function.arguments", UseError)}}


def plain_message(message: Any, place: str) -> Any:
    """Return a message whose content is one text; OpenAI's may be a list of parts, of which texts alone are read here."""
    if not isinstance(message, dict):
        raise wrong(place, described(message), "{}")
    dropped = {name for name in ("refusal", "audio", "annotations", "function_call") if not message.get(name)}
    message = {name: value for name, value in message.items() if name not in dropped}
    if isinstance(calls := message.get("tool_calls"), list):
        message["tool_calls"] = [plain_call(call, f"{place}.tool_calls[{i}]") for i, call in enumerate(calls)]
    if not isinstance(parts := message.get("content"), list):
        return message
    texts = []
    for i, part in enumerate(parts):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else part
            raise wrong(f"{place}.content[{i}].type", described(kind), '"text"')
        texts.append(part["text"])
    return message | {"content": "".join(texts)}
