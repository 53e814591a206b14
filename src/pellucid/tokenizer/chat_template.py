"""A checkpoint's chat templates: where they are found, which one is used, and the prompt that it makes of messages.

It is a program that came with the weights, so it runs in a worker (`rendering`). What it gives back says which stretches of the prompt
it wrote itself: only there may a control token be read.
"""

import json
import os
import re
import warnings
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from secrets import randbits
from typing import Any

from pellucid.checkpoint.disk import inside, read_text
from pellucid.checkpoint.json_file import name_of, read_object
from pellucid.errors import TokenizerError, UseError
from pellucid.messages import say
from pellucid.tokenizer import chat
from pellucid.tokenizer.limited_process import LimitedProcess

TEMPLATE_FILE, LEGACY_FILE, TEMPLATE_FOLDER = "chat_template.jinja", "chat_template.json", "additional_chat_templates"
DEFAULT, TOOLS = "default", "tool_use"
TEMPLATE_BYTES = 1_000_000
LONGEST = 16_000_000  # characters of what a template is given
ROOM = 1_000_000  # characters of a prompt, beside four for each that went in
MOST = 16  # templates of one folder
MARK = re.compile(r"{%[-+]?\s*generation\s*[-+]?%}")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt. own: start and stop of each stretch that the template wrote.  date: the time given to it, None if it never asks.

    seed: what its random choices were drawn by, None where it makes none.  answers: start and stop of what `{% generation %}` marks.
    """

    text: str
    own: tuple[tuple[int, int], ...]
    date: str | None
    seed: int | None = None
    answers: tuple[tuple[int, int], ...] = ()


class Template:
    """One template; `file` is its name in errors.  marks: it says by `{% generation %}` what an assistant gives."""

    def __init__(self, source: str, file: str) -> None:
        if len(source.encode(errors="replace")) > TEMPLATE_BYTES:
            raise TokenizerError("file.large", file=file, size=len(source), limit=TEMPLATE_BYTES)
        self.source, self.file = source, file
        self.marks = MARK.search(source) is not None
        self.dated, self.random = "strftime_now" in source, "random" in source
        self._worker = LimitedProcess({"serve": "template", "source": source}, file)

    def __reduce__(self) -> tuple[type["Template"], tuple[str, str]]:
        return Template, (self.source, self.file)  # its process stays here

    @property
    def literals(self) -> str:
        """Return every text literal in the template, joined by NUL."""
        texts: str = self._worker.ask()["literals"]
        return texts

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        documents: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        now: datetime | None = None,
        settings: dict[str, Any] | None = None,
        tokens: dict[str, str] | None = None,
        seed: int | None = None,
    ) -> Rendered:
        """Render the prompt of these messages.

        now: what strftime_now tells, this moment where None.  settings: enable_thinking and its like.  tokens: {"bos_token": "<s>"}.
        seed: what the filter `random` draws by, a new one where None.
        """
        if type(add_generation_prompt) is not bool:
            raise UseError("chat.kind", place="add_generation_prompt", found=name_of(add_generation_prompt), expected=name_of(True))
        variables = {
            **chat.settings(settings or {}),
            "tools": chat.objects(tools, "tools"),
            "documents": chat.objects(documents, "documents"),
            "add_generation_prompt": add_generation_prompt,
        }
        request = {"messages": chat.checked(messages), "variables": variables, "tokens": tokens or {}}
        size = len(json.dumps(request, ensure_ascii=False))
        if size > LONGEST:
            raise UseError("chat.large", size=size, limit=LONGEST)
        date = (now or datetime.now()).isoformat()
        seed = randbits(53) if seed is None else seed
        answer = self._worker.ask({**request, "now": date, "seed": seed, "most": 4 * size + ROOM})
        own, answers = (tuple((start, stop) for start, stop in answer[kind]) for kind in ("own", "answers"))
        return Rendered(answer["text"], own, date if self.dated else None, seed if self.random else None, answers)


def templates(folder: Path, settings: dict[str, Any], settings_file: Path | None) -> dict[str, Template]:
    """Return the chat templates of a folder by name.

    Files of their own win over `chat_template` of tokenizer_config.json, and that over chat_template.json, as in transformers.
    """
    in_settings = _from_settings(settings.get("chat_template"), settings_file)
    alone = os.path.lexists(folder / TEMPLATE_FILE)
    paths = {DEFAULT: inside(folder, TEMPLATE_FILE, TokenizerError)} if alone else {}
    paths |= {path.stem: path for path in named_files(folder)}
    by_name = {name: Template(read_text(path, TEMPLATE_BYTES, TokenizerError), str(path)) for name, path in paths.items()}
    if by_name and (
        lost := [name for name in in_settings if name not in by_name or by_name[name].source.rstrip() != in_settings[name].source.rstrip()]
    ):
        where = ", ".join(Path(template.file).name for template in by_name.values())
        warnings.warn(say("template.twice", file=settings_file, names=", ".join(lost), taken=where), stacklevel=4)
    by_name = by_name or in_settings
    if not by_name and os.path.lexists(folder / LEGACY_FILE):
        path = inside(folder, LEGACY_FILE, TokenizerError)
        by_name = _from_settings(read_object(path, error=TokenizerError).get("chat_template"), path)
    return by_name


def named_files(folder: Path) -> list[Path]:
    """Return the template files of a folder that are named after their templates."""
    if not os.path.lexists(folder / TEMPLATE_FOLDER):
        return []
    place = inside(folder, TEMPLATE_FOLDER, TokenizerError)
    names = sorted(file.name for file in place.glob("*.jinja"))
    if len(names) > MOST:
        raise TokenizerError("template.many", folder=place, count=len(names), limit=MOST)
    return [inside(place, name, TokenizerError) for name in names]


def ended_after(rendered: Rendered, message: dict[str, Any]) -> Rendered:
    """Return the prompt up to the end of its last message's content. A UseError if the template did not write that as it is.

    A template may strip the content; then the prompt ends with the stripped one.
    """
    content = message.get("content")
    at = rendered.text.rfind(content.strip()) if isinstance(content, str) and content.strip() else -1
    if at < 0 or not isinstance(content, str):
        raise UseError("template.continue")
    end = at + len(content.strip())
    if rendered.text.startswith(content.lstrip(), at):
        end = at + len(content.lstrip())
    return replace(rendered, text=rendered.text[:end], own=tuple((start, min(stop, end)) for start, stop in rendered.own if start < end))


def choose(by_name: dict[str, Template], file: str, name: str | None, tools: bool) -> Template:
    """Return the template `name`, else the one for tools if there are some, else the default, else the only one."""
    if not by_name:
        raise TokenizerError("template.missing", file=file)
    if name is not None and name not in by_name:
        raise UseError("template.name", name=name, allowed=", ".join(by_name))
    wanted = [name] if name else [TOOLS, DEFAULT] if tools else [DEFAULT]
    taken = next((by_name[each] for each in wanted if each in by_name), None)
    if taken is None and len(by_name) > 1:
        raise UseError("template.name", name=DEFAULT, allowed=", ".join(by_name))
    return taken or next(iter(by_name.values()))


def _from_settings(value: Any, file: Path | None) -> dict[str, Template]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {DEFAULT: Template(value, f"{file}: chat_template")}
    by_name: dict[str, Template] = {}
    for i, one in enumerate(value if isinstance(value, list) else [value]):
        place = f"chat_template[{i}]" if isinstance(value, list) else "chat_template"
        name, source = (one.get("name"), one.get("template")) if isinstance(one, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(source, str) or name in by_name or i >= MOST:
            raise TokenizerError("template.kind", file=file, field=place)
        by_name[name] = Template(source, f"{file}: {place}")
    return by_name
