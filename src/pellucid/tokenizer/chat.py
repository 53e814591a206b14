"""The arguments of a chat, checked before a template sees them: each fault is named by its place, messages[3].role.

Everything is plain JSON; a content is one string. Keys whose value is null count as absent, as in transformers.
"""

import math
from collections.abc import Sequence
from typing import Any

from pellucid.checkpoint.json_file import DEEPEST, MOST_DIGITS, name_of
from pellucid.errors import UseError

ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython", "observation")
KEYS = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning", "thinking")
REASONING = ("reasoning_content", "thinking", "reasoning")  # one thing by three names; templates read the first or the second
SETTINGS: dict[str, type] = {
    "enable_thinking": bool,
    "thinking": bool,
    "thinking_budget": int,
    "reasoning_effort": str,
    "preserve_thinking": bool,
    "tools_in_user_message": bool,
    "date_string": str,
    "model_identity": str,
}

Message = dict[str, Any]


def checked(messages: Any) -> list[Message]:
    """Return the messages of a chat in the form that templates take."""
    _is(messages, list, "messages")
    if not messages:
        raise UseError("chat.empty")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def objects(given: Any, place: str) -> list[Any] | None:
    """Return tools or documents, a list of JSON objects, or None."""
    if given is None:
        return None
    for i, one in enumerate(_is(given, list, place)):
        _plain(_is(one, dict, f"{place}[{i}]"), f"{place}[{i}]")
    return list(given)


def settings(given: dict[str, Any]) -> dict[str, Any]:
    """Return further arguments of a template: known names, each of its type."""
    for name, value in _is(given, dict, "settings").items():
        if name not in SETTINGS:
            raise UseError("chat.setting", name=name, allowed=", ".join(SETTINGS))
        _plain(_is(value, SETTINGS[name], name), name)
    return given


def _message(message: Any, place: str) -> Message:
    fields = {name: value for name, value in _is(message, dict, place).items() if value is not None}
    for name in fields:
        if name not in KEYS:
            raise UseError("chat.unknown", place=f"{place}.{name}", allowed=", ".join(KEYS))
    if fields.get("role") not in ROLES:
        raise UseError("chat.role", place=f"{place}.role", found=fields.get("role"), allowed=", ".join(ROLES))
    for name, value in fields.items():
        _plain(_is(value, list if name == "tool_calls" else str, f"{place}.{name}"), f"{place}.{name}")
    for i, call in enumerate(fields.get("tool_calls", ())):
        _is(call, dict, f"{place}.tool_calls[{i}]")
    if "content" not in fields and "tool_calls" not in fields:
        raise UseError("chat.content", place=f"{place}.content")
    thought = next((fields[name] for name in REASONING if name in fields), None)
    return fields if thought is None else {"thinking": thought, **fields, "reasoning_content": thought}


def _is(value: Any, kind: type, place: str) -> Any:
    if type(value) is not kind:
        raise UseError("chat.kind", place=place, found=name_of(value), expected=name_of(kind()))
    return value


def _plain(value: Any, place: str, depth: int = 1) -> None:
    """Raise a UseError unless `value` is plain JSON, not too deep, without half characters; a cycle counts as too deep."""
    if depth > DEEPEST:
        raise UseError("chat.depth", place=place[:100], limit=DEEPEST)
    inner: Sequence[tuple[Any, str]] = ()
    if isinstance(value, dict):
        inner = [(name, place) for name in value] + [(each, f"{place}.{name}") for name, each in value.items()]
        if odd := [name for name in value if not isinstance(name, str)]:
            raise UseError("chat.kind", place=place, found=name_of(odd[0]), expected=name_of(""))
    elif isinstance(value, list):
        inner = [(each, f"{place}[{i}]") for i, each in enumerate(value)]
    elif isinstance(value, str):
        if any("\ud800" <= c <= "\udfff" for c in value):
            raise UseError("chat.surrogate", place=place)
    elif not isinstance(value, bool | int | float | None) or (isinstance(value, float) and not math.isfinite(value)):
        raise UseError("chat.kind", place=place, found=str(value) if isinstance(value, float) else name_of(value), expected="JSON")
    elif isinstance(value, int) and abs(value) >= 10**MOST_DIGITS:
        raise UseError("chat.digits", place=place, limit=MOST_DIGITS)
    for each, where in inner:
        _plain(each, where, depth + 1)
