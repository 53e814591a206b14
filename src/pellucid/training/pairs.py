"""Pairs of answers to one prompt, the better one first: a line of JSON each, as texts or as messages.

p.jsonl   {"prompt": "...", "chosen": "...", "rejected": "..."}          data.field names other fields
q.jsonl   {"prompt": [{"role": "user", ...}], "chosen": [{"role": "assistant", ...}], "rejected": [...]}

A pair is two documents, each the prompt and one answer, whose tokens alone count. Messages get their text by the folder's chat template;
without a prompt of its own, a pair's prompt is the messages that both begin with.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from pellucid.checkpoint.json_file import name_of
from pellucid.errors import TrainError
from pellucid.tokenizer.chat_lessons import Lesson, lessons
from pellucid.tokenizer.tokenizer import Tokenizer
from pellucid.training.chats import Chats, pair
from pellucid.training.parquet import MOST_NAMES

COMPARED = ("prompt", "chosen", "rejected")


@dataclass(frozen=True)
class Pairs(Chats):
    """The [data] table of a recipe of pairs. field: of the prompt, of the better answer, and of the other."""

    field: str | tuple[str, ...] = COMPARED

    def lessons(self, entry: dict[str, Any], file: Path, line: int, tokenizer: Tokenizer, end: int) -> list[Lesson]:
        """Return the two documents of a line, the better one first. A TrainError if they are the same."""
        made = answers(self.field, entry, file, line, tokenizer, end)
        if made[0].ids == made[1].ids:
            raise TrainError("data.same", path=file, line=line)
        return made


def answers(fields: Sequence[str], entry: dict[str, Any], file: Path, line: int, tokenizer: Tokenizer, end: int) -> list[Lesson]:
    """Return the two documents of one line: of texts, or of messages where the better answer is a list of them."""
    prompt, *names = fields
    for name in names:
        if name not in entry:
            raise TrainError("data.field", path=file, line=line, field=name, found=", ".join(list(entry)[:MOST_NAMES]) or "-")
    if not isinstance(entry[names[0]], list):
        return [pair((prompt, name), entry, file, line, tokenizer, end) for name in names]
    given = entry.get(prompt, [])
    for name, value in ((prompt, given), *((name, entry[name]) for name in names)):
        if not isinstance(value, list):
            raise TrainError("data.messages", path=file, line=line, field=name, found=name_of(value))
    first, second = entry[names[0]], entry[names[1]]
    shared = len(given) or sum(1 for _ in takewhile(lambda two: two[0] == two[1], zip(first, second, strict=False)))
    return [answer([*given, *messages], shared, entry, file, line, tokenizer) for messages in (first, second)]


def answer(messages: list[Any], first: int, entry: dict[str, Any], file: Path, line: int, tokenizer: Tokenizer) -> Lesson:
    """Return the document of a chat whose messages from `first` on count. A TrainError if nothing does, or it is no single document."""
    made = lessons(tokenizer, messages, entry.get("tools"), first=first)
    if not any(any(one.learnt[1:]) for one in made):
        raise TrainError("data.reply", path=file, line=line)
    if len(made) > 1:
        raise TrainError("data.several", path=file, line=line)
    return made[0]
