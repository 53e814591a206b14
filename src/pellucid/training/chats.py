"""Chats and pairs as documents: a line of JSON each, its tokens by the folder's own chat template, and which of them carry loss.

d.jsonl   {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}], "tools": [...]}
e.jsonl   {"prompt": "...", "completion": "..."}          data.field names other fields

Of a chat, what an assistant gave is learnt, and the stop of its turn (`tokenizer.chat_lessons`); of a pair, the completion and the end of
text. A pair's prompt is encoded alone, as it is when the model is asked.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pellucid.errors import PellucidError, TrainError
from pellucid.tokenizer.chat_lessons import Lesson, lessons
from pellucid.tokenizer.tokenizer import Tokenizer
from pellucid.training.parquet import MOST_NAMES
from pellucid.training.texts import Texts, entry_text, read_entries

PAIR = ("prompt", "completion")


@dataclass(frozen=True)
class Chats(Texts):
    """The [data] table of a recipe of chats. field: of the messages, or two: of a prompt and its completion.

    long: what becomes of a chat longer than a row, "refuse", "drop" or "cut".
    """

    field: str | tuple[str, ...] = "messages"
    long: str = "refuse"

    def lessons(self, entry: dict[str, Any], file: Path, line: int, tokenizer: Tokenizer, end: int) -> list[Lesson]:
        """Return the documents of one line. end: the id that ends a text."""
        if isinstance(self.field, tuple):
            return [pair(self.field, entry, file, line, tokenizer, end)]
        return chat(self.field, entry, file, line, tokenizer)


@dataclass(frozen=True)
class Asked(Chats):
    """The [data] table of a recipe of prompts that a model answers itself; each has a right answer, which is no target."""

    field: str | tuple[str, ...] = PAIR
    pack: str = "none"


class TaughtDocument(NamedTuple):
    """A chat's tokens, with the line that it stands in, from 1. learnt: True for each that carries loss."""

    ids: list[int]
    learnt: list[bool]
    line: int


def taught_documents(
    data: Chats, files: Sequence[Path], tokenizer: Tokenizer, end: int, counts: dict[str, int]
) -> Iterator[TaughtDocument]:
    """Yield the documents of all files, and count those of each into `counts`. end: the id that ends a text."""
    for file in files:
        name = data.name(file)
        for line, entry in read_entries(file):
            try:
                made = data.lessons(entry, file, line, tokenizer, end)
            except TrainError:
                raise
            except PellucidError as fault:
                raise TrainError("data.chat", path=file, line=line, reason=fault.line()) from None
            counts[name] = counts.get(name, 0) + len(made)
            yield from (TaughtDocument(one.ids, one.learnt, line) for one in made)
        if name not in counts:
            raise TrainError("data.empty", path=file)


def chat(field: str, entry: dict[str, Any], file: Path, line: int, tokenizer: Tokenizer) -> list[Lesson]:
    """Return the documents of a chat. A TrainError if there is nothing to learn in it."""
    if field not in entry:
        raise TrainError("data.field", path=file, line=line, field=field, found=", ".join(list(entry)[:MOST_NAMES]) or "-")
    made = lessons(tokenizer, entry[field], entry.get("tools"))
    if not any(any(one.learnt[1:]) for one in made):
        raise TrainError("data.reply", path=file, line=line)
    return made


def pair(fields: tuple[str, ...], entry: dict[str, Any], file: Path, line: int, tokenizer: Tokenizer, end: int) -> Lesson:
    """Return the document of a prompt and its completion."""
    given, answer = (tokenizer.encode(entry_text(entry, file, line, field), special=False) for field in fields)
    return Lesson([*given, *answer, end], [False] * len(given) + [True] * (len(answer) + 1))
