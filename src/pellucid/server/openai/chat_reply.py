"""A chat's reply: its reasoning, its content and its calls of tools, as one message or as the differences of a stream."""

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pellucid.engine.grammar import GrammarConstraint
from pellucid.errors import RequestError
from pellucid.runs.request import described, wrong
from pellucid.server.openai.body_fields import BodyFields, is_one_of
from pellucid.server.openai.structured import constrained, wanted_form
from pellucid.server.openai.tool_formats import CLOSES, OPENS, ReplyParts, Schemas, ToolFormat, format_of, plain, thought
from pellucid.server.openai.tool_grammar import MOST, grammar_of
from pellucid.tokenizer.chat_template import choose

if TYPE_CHECKING:
    from pellucid.server.openai.served_model import ServedModel

NAME = re.compile(r"[\w.-]{1,64}")
ANY: dict[str, Any] = {"type": "object"}
NAMED = '{"function": {"name": "..."}}'  # a choice of one tool


@dataclass(frozen=True)
class ReplyForm:
    """How the replies of a chat are written. format: of calls, None without tools.  thinks: a reply may begin with reasoning.

    inside: the prompt has opened it.  schemas: of the tools' parameters.  kept: special tokens that stay in the text for the readers.
    """

    format: ToolFormat | None = None
    thinks: bool = False
    inside: bool = False
    schemas: Schemas = field(default_factory=dict)
    kept: frozenset[int] = frozenset()

    def read(self, text: str, ended: bool) -> ReplyParts:
        """Take a text apart."""
        if self.format is not None and self.format.name == "harmony":
            return self.format.read(text, ended, self.schemas)
        reasoning, rest = thought(text, self.inside, ended) if self.thinks else ("", text)
        parts = (self.format.read if self.format is not None else plain)(rest, ended, self.schemas)
        parts.reasoning = reasoning
        return parts

    def reasons(self, text: str) -> bool:
        """True while a text so far is reasoning."""
        if self.format is not None and self.format.name == "harmony":
            return "<|channel|>final" not in text and "to=functions." not in text
        return self.thinks and CLOSES not in text and (self.inside or text.lstrip().startswith(OPENS))

    def id(self) -> str:
        """Return a new id of a call; Mistral's templates take nine letters and figures."""
        short = self.format is not None and self.format.name == "mistral"
        return secrets.token_hex(5)[:9] if short else f"call_{secrets.token_hex(12)}"

    def message(self, text: str) -> dict[str, Any]:
        """Return the message of a reply that has ended."""
        parts = self.read(text, True)
        message: dict[str, Any] = {"role": "assistant", "content": parts.content if parts.content or not parts.calls else None}
        message |= {"refusal": None} | ({"reasoning_content": parts.reasoning} if parts.reasoning else {})
        if parts.calls:
            message["tool_calls"] = [
                {"id": self.id(), "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in parts.calls
            ]
        return message


class ReplyStream:
    """The differences of one reply as it grows. form: how it is written."""

    def __init__(self, form: ReplyForm) -> None:
        self.form, self.text = form, ""
        self.sent = ReplyParts()

    def feed(self, text: str, ended: bool) -> dict[str, Any]:
        """Add text. Returns the delta of the message, {} if nothing of it can be shown yet."""
        self.text += text
        parts, sent, delta = self.form.read(self.text, ended), self.sent, dict[str, Any]()
        if len(parts.reasoning) > len(sent.reasoning):
            delta["reasoning_content"] = parts.reasoning[len(sent.reasoning) :]
        if len(parts.content) > len(sent.content):
            delta["content"] = parts.content[len(sent.content) :]
        calls = list[dict[str, Any]]()
        for i, call in enumerate(parts.calls):
            if i >= len(sent.calls):
                function = {"name": call.name, "arguments": call.arguments}
                calls.append({"index": i, "id": self.form.id(), "type": "function", "function": function})
            elif len(call.arguments) > len(sent.calls[i].arguments):
                calls.append({"index": i, "function": {"arguments": call.arguments[len(sent.calls[i].arguments) :]}})
        self.sent = parts
        return delta | ({"tool_calls": calls} if calls else {})


def reply_form(served: "ServedModel", fields: BodyFields, rendered: str) -> tuple[ReplyForm, GrammarConstraint | None]:
    """Return how the replies of a chat are written, and the constraint of one that must call a tool, or must have a form.

    A form is that of the content: reasoning that the prompt has begun comes before it, and under `response_format` a tool may be called
    in its place. rendered: the prompt's text.  A RequestError for wrong tools or forms, and a template whose calls cannot be read.
    """
    (schemas, chosen), several = tools_of(fields), fields.truth("parallel_tool_calls", True)
    source = choose(served.tokenizer.templates, served.name, None, bool(schemas)).source
    format, inside = format_of(source), rendered.rstrip().endswith(OPENS)
    if schemas and (format is None or "tools" not in source):
        raise RequestError("serve.tools", 400, "tools", model=served.name)
    used = format if schemas or (format is not None and format.name == "harmony") else None
    names = (*(used.marks if used is not None else ()), OPENS, CLOSES)
    marks = {name: served.marks[name] for name in names if name in served.marks}
    form = ReplyForm(used, OPENS in source, inside, schemas, frozenset(marks.values()))
    must, wanted = chosen not in ("auto", "none") and used is not None, wanted_form(fields)
    if must and wanted is not None and wanted[0] != "response_format":
        raise RequestError("server.either", 400, "tool_choice", one="tool_choice", other=wanted[0])
    if wanted is None and not must:
        return form, None
    special = {p.id for p in served.tokenizer.pieces(marks.values()) if p.special}

    def mark(text: str) -> str:
        return f"<[{marks[text]}]>" if marks.get(text) in special else grammar_text(text)

    named = {chosen[1]: schemas[chosen[1]]} if isinstance(chosen, tuple) else schemas
    most = 1 if isinstance(chosen, tuple) or not several else MOST
    if must or wanted is None:
        assert used is not None
        return form, constrained(served, "tools", "lark", grammar_of(used.name, source, named, most, inside, mark))
    form_alone = constrained(served, *wanted)
    callable_tools = named if wanted[0] == "response_format" else {}
    if not callable_tools and not inside and (used is None or used.name != "harmony"):
        return form, form_alone
    around = grammar_of(None if used is None else used.name, source, callable_tools, most, inside, mark, True)
    name, kind, grammar = wanted
    return form, constrained(served, "tools" if callable_tools else name, kind, grammar, around)


def grammar_text(text: str) -> str:
    """Write a mark that is plain text."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def tools_of(fields: BodyFields) -> tuple[dict[str, Mapping[str, Any]], str | tuple[str, str]]:
    """Return the schemas of the tools that may be called, by name, and the choice: auto, none, required, or ("function", name)."""
    tools, schemas = fields.given.get("tools", []), dict[str, Mapping[str, Any]]()
    if not isinstance(tools, list) or len(tools) > 128:
        raise wrong("tools", described(tools), "[{}] (0..128)")
    for i, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or tool.get("type", "function") != "function":
            raise wrong(f"tools[{i}]", described(tool), '{"type": "function", "function": {"name": "..."}}')
        name, schema = function.get("name"), function.get("parameters") or ANY
        if not isinstance(name, str) or not NAME.fullmatch(name) or name in schemas:
            raise wrong(f"tools[{i}].function.name", described(name), "a-z, A-Z, 0-9, _, -, . (1..64)")
        if not isinstance(schema, dict):
            raise wrong(f"tools[{i}].function.parameters", described(schema), "{}")
        schemas[name] = schema
    choice = fields.given.get("tool_choice", "auto")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        schemas, choice = allowed_tools(choice, schemas)
    if isinstance(choice, dict):
        name = (choice.get("function") or {}).get("name") if isinstance(choice.get("function"), dict) else choice.get("name")
        if not is_one_of(name, schemas):
            raise wrong("tool_choice.function.name", described(name), ", ".join(schemas) or "-")
        return schemas, ("function", str(name))
    if not is_one_of(choice, ("auto", "none", "required")) or (choice == "required" and not schemas):
        raise wrong("tool_choice", described(choice), f"auto | none | required | {NAMED}" if schemas else "auto | none")
    return ({} if choice == "none" else schemas), choice


def allowed_tools(choice: Mapping[str, Any], schemas: Schemas) -> tuple[dict[str, Mapping[str, Any]], Any]:
    """Return the schemas of the tools that a choice among some of them names, and its mode; of /v1/responses' shape or of a chat's."""
    nested = isinstance(choice.get("allowed_tools"), dict)
    own, place = (choice["allowed_tools"], "tool_choice.allowed_tools") if nested else (choice, "tool_choice")
    if not isinstance(entries := own.get("tools", []), list):
        raise wrong(f"{place}.tools", described(entries), "[{}]")
    out = dict[str, Mapping[str, Any]]()
    for i, entry in enumerate(entries):
        of = entry if isinstance(entry, dict) else {}
        name = of["function"].get("name") if isinstance(of.get("function"), dict) else of.get("name")
        if not is_one_of(name, schemas):
            raise wrong(f"{place}.tools[{i}]", described(name), ", ".join(schemas) or "-")
        out[str(name)] = schemas[str(name)]
    return out, own.get("mode", "auto")


def given_tools(fields: BodyFields) -> Sequence[dict[str, Any]] | None:
    """Return the tools that the template shows: those that may be called. A RequestError for wrong ones, before it reads them."""
    schemas, _ = tools_of(fields)
    return [tool for tool in fields.given.get("tools", ()) if tool["function"]["name"] in schemas] or None
