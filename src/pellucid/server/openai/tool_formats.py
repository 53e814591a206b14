"""How published models write calls of tools, one reader each: from a text so far to its reasoning, its content and its calls.

    hermes     <tool_call>\\n{"name": "f", "arguments": {...}}\\n</tool_call>                          Qwen, Hermes
    llama      {"name": "f", "parameters": {...}}                                                    Llama 3
    mistral    [TOOL_CALLS] [{"name": "f", "arguments": {...}}]   or   [TOOL_CALLS]f[ARGS]{...}
    deepseek   <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\\n```json\\n{...}\\n```<｜tool▁call▁end｜>
    glm        <tool_call>f\\n<arg_key>x</arg_key>\\n<arg_value>1</arg_value>\\n</tool_call>
    harmony    <|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}                gpt-oss

A reader is a function of the text, and what it returns for a beginning is a beginning of what it returns later: so a stream is the
difference of two readings. Text that may still become a mark is held back until it does not, or the text has ended.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

OPENS, CLOSES = "<think>", "</think>"
HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=[{\["])')
Schemas = Mapping[str, Mapping[str, Any]]  # of the parameters of each tool


@dataclass
class ToolCall:
    """A call in a text. arguments: its JSON so far.  complete: it has ended."""

    name: str
    arguments: str = ""
    complete: bool = False


@dataclass
class ReplyParts:
    """A text taken apart."""

    reasoning: str = ""
    content: str = ""
    calls: list[ToolCall] = field(default_factory=list)


Reader = Callable[[str, bool, Schemas], ReplyParts]


@dataclass(frozen=True)
class ToolFormat:
    """A format. marks: special tokens that a reader needs in the text.  fits: a text that its templates have."""

    name: str
    fits: Callable[[str], bool]
    read: Reader
    marks: tuple[str, ...] = ()


def held_back(text: str, marks: Sequence[str], ended: bool) -> str:
    """Return text without an end that may become one of `marks`, and without spaces at its end; all of it if the text has ended."""
    if ended:
        return text
    longest = max((n for m in marks for n in range(1, min(len(m), len(text) + 1)) if text.endswith(m[:n])), default=0)
    return text[: len(text) - longest].rstrip()


def thought(text: str, inside: bool, ended: bool) -> tuple[str, str]:
    """Return the reasoning that a text begins with, and the rest. inside: the prompt has opened it."""
    body = text
    if not inside:
        body = text.lstrip()
        if not body.startswith(OPENS):
            return "", "" if OPENS.startswith(body) and not ended else text
        body = body[len(OPENS) :]
    reasoning, closed, rest = body.partition(CLOSES)
    if closed:
        return reasoning.strip("\n"), rest.lstrip("\n")
    return held_back(body, [CLOSES], ended).strip("\n"), ""


def value_end(text: str, start: int) -> int | None:
    """Return the end of the JSON value at `start`, an object, an array or a string; None while it has none."""
    depth, quoted, i = 0, False, start
    while i < len(text):
        c = text[i]
        if quoted:
            i += c == "\\"
            quoted = c != '"'
        else:
            quoted = c == '"'
            depth += (c in "{[") - (c in "}]")
        i += 1
        if depth == 0 and not quoted:
            return i if i <= len(text) else None
    return None


def unescaped(text: str) -> str:
    """Return the text that JSON writes as `text`, or what is between its quotes if that is no JSON."""
    try:
        return str(json.loads(text, strict=False))
    except ValueError:
        return text[1:-1]


def json_call(text: str, start: int) -> tuple[ToolCall | None, int | None]:
    """Return the call that a JSON object at `start` is, and where it ends. None for no call yet, and for no end yet."""
    if (head := HEAD.match(text, start)) is not None:
        at = head.end()
        end = value_end(text, at)
        arguments = text[at:end]
        if end is not None and arguments.startswith('"'):  # JSON as a text in JSON
            arguments = unescaped(arguments)
        elif arguments.startswith('"'):
            arguments = ""
        close = None if end is None else re.compile(r"\s*\}").match(text, end)
        return ToolCall(unescaped(head[1]), arguments, close is not None), None if close is None else close.end()
    begins = re.compile(r"\s*\{").match(text, start)
    end = None if begins is None else value_end(text, begins.end() - 1)
    if begins is None or end is None:
        return None, None
    try:
        given = json.loads(text[begins.end() - 1 : end], strict=False)
        arguments, name = given.get("arguments", given.get("parameters", {})), given["name"]
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return (ToolCall(name, written, True), end) if isinstance(name, str) else (None, None)
    except (ValueError, KeyError):
        return None, None


def after_marks(text: str, mark: str, ended: bool, read: Callable[[str, int], tuple[list[ToolCall], int | None]]) -> ReplyParts:
    """Return the content before the first `mark`, and the calls after each. read: the calls at a place, and where they end.

    What follows a mark and never becomes a call is content once the text has ended.
    """
    at = text.find(mark)
    if at < 0:
        return ReplyParts(content=held_back(text, [mark], ended))
    out = ReplyParts(content=text[:at].rstrip())
    while at >= 0:
        calls, end = read(text, at + len(mark))
        out.calls += calls
        if end is None:
            break
        at = text.find(mark, end)
    if ended and not out.calls:
        out.content = text
    return out


def hermes(text: str, ended: bool, schemas: Schemas) -> ReplyParts:
    def read(text: str, at: int) -> tuple[list[ToolCall], int | None]:
        call, end = json_call(text, at)
        return [call] if call is not None else [], end

    return after_marks(text, "<tool_call>", ended, read)


def llama(text: str, ended: bool, schemas: Schemas) -> ReplyParts:
    """Read calls that are the whole text, one after another, with ";" between."""
    own = text.lstrip().removeprefix("<|python_tag|>").lstrip()
    if not ended and (not own or "<|python_tag|>".startswith(own)):
        return ReplyParts()
    out, at = ReplyParts(), 0
    while own.startswith("{"):
        call, end = json_call(own, at)
        out.calls += [call] if call is not None else []
        if end is None:
            break
        at = end + len(own[end:]) - len(own[end:].lstrip("; \n"))
        if own[at : at + 1] != "{":
            break
    if not out.calls and (ended or not own.startswith("{")):
        out.content = text
    return out


def mistral(text: str, ended: bool, schemas: Schemas) -> ReplyParts:
    named = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\][\w-]*)?(?:\[ARGS\])?\s*(?=\{)")

    def read(text: str, at: int) -> tuple[list[ToolCall], int | None]:
        if (head := named.match(text, at)) is not None:
            close = value_end(text, head.end())
            return [ToolCall(head[1], text[head.end() : close], close is not None)], close
        calls, listing = list[ToolCall](), re.compile(r"\s*\[").match(text, at)
        end: int | None = at if listing is None else listing.end()
        while end is not None:
            call, end = json_call(text, end)
            calls += [call] if call is not None else []
            if end is not None and (more := re.compile(r"\s*,").match(text, end)) is not None:
                end = more.end()
            elif end is not None:
                return calls, end
        return calls, None

    return after_marks(text, "[TOOL_CALLS]", ended, read)


def deepseek(text: str, ended: bool, schemas: Schemas) -> ReplyParts:
    heads = re.compile(r"(?:function<｜tool▁sep｜>([^\n]+)\n```json\n|([^<\n]+)<｜tool▁sep｜>)\s*(?=\{)")

    def read(text: str, at: int) -> tuple[list[ToolCall], int | None]:
        calls, begin = list[ToolCall](), "<｜tool▁call▁begin｜>"
        while (start := text.find(begin, at)) >= 0:
            if (head := heads.match(text, start + len(begin))) is None:
                break
            end = value_end(text, head.end())
            calls.append(ToolCall((head[1] or head[2]).strip(), text[head.end() : end], end is not None))
            if end is None:
                break
            at = end
        return calls, None

    return after_marks(text, "<｜tool▁calls▁begin｜>", ended, read)


def glm(text: str, ended: bool, schemas: Schemas) -> ReplyParts:
    pair = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.S)

    def read(text: str, at: int) -> tuple[list[ToolCall], int | None]:
        end = text.find("</tool_call>", at)
        if end < 0:
            return [], None
        name, own = re.split(r"\n|<arg_key>", text[at:end].strip(), maxsplit=1)[0].strip(), dict[str, Any]()
        for key, value in pair.findall(text[at:end]):
            own[key.strip()] = glm_value(value, (schemas.get(name, {}).get("properties") or {}).get(key.strip(), {}))
        return [ToolCall(name, json.dumps(own, ensure_ascii=False), True)], end

    return after_marks(text, "<tool_call>", ended, read)


def glm_value(text: str, schema: Any) -> Any:
    """Return an argument's value: a text as it stands if its schema says so, else JSON, or a text if it is none."""
    if isinstance(schema, dict) and schema.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def harmony(text: str, ended: bool, schemas: Schemas) -> ReplyParts:
    """Read the channels of gpt-oss: analysis is reasoning, final is content, a message to a function is a call."""
    message = re.compile(r"(?:<\|start\|>assistant)?([^<]*)<\|channel\|>(\w+)([^<]*)(?:<\|constrain\|>\w+\s*)?<\|message\|>")
    ends, out, at = re.compile(r"<\|(?:end|call|return|start)\|>"), ReplyParts(), 0
    while (head := message.match(text, at)) is not None:
        close = ends.search(text, head.end())
        body = text[head.end() : close.start()] if close is not None else held_back_mark(text[head.end() :], ended)
        to = re.search(r"to=functions\.([\w.-]+)", head[1] + head[3])
        if to is not None:
            out.calls.append(ToolCall(to[1], body.strip(), close is not None or ended))
        elif head[2] == "analysis":
            out.reasoning += body
        else:
            out.content += body
        if close is None:
            break
        at = close.start() if close[0] == "<|start|>" else close.end()
    if not out.reasoning and not out.content and not out.calls and ended:
        out.content = text
    return out


def held_back_mark(text: str, ended: bool) -> str:
    """Return text without a mark "<|...|>" that has begun at its end."""
    at = text.rfind("<")
    return text if ended or at < 0 or not "<|".startswith(text[at : at + 2]) else text[:at]


def plain(text: str, ended: bool, schemas: Schemas) -> ReplyParts:
    """Read a text without calls."""
    return ReplyParts(content=text)


HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>")
DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")
# In this order: the first that fits a template's source is its format.
FORMATS = (
    ToolFormat("harmony", lambda source: "<|channel|>" in source, harmony, HARMONY),
    ToolFormat("glm", lambda source: "<arg_key>" in source, glm, ("<tool_call>", "</tool_call>")),
    ToolFormat("hermes", lambda source: "<tool_call>" in source and "<function=" not in source, hermes, ("<tool_call>", "</tool_call>")),
    ToolFormat("mistral", lambda source: "[TOOL_CALLS]" in source, mistral, ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")),
    ToolFormat("deepseek", lambda source: "<｜tool▁calls▁begin｜>" in source, deepseek, DEEPSEEK),
    ToolFormat("llama", lambda source: "<|start_header_id|>" in source and '"parameters"' in source, llama, ("<|python_tag|>",)),
)


def format_of(source: str) -> ToolFormat | None:
    """Return the format of a chat template's calls, None if it writes none that is known."""
    return next((f for f in FORMATS if f.fits(source)), None)
