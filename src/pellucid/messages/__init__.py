"""Every sentence a person reads, by key, in English and Chinese.

    say("config.missing", file="config.json", field="hidden_size")

A count has two forms: "{count} {count:row|rows}" is "1 row" and "3 rows".

Values that come from a file or a user are escaped and cut, so that no control character reaches a terminal.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path

LANGUAGES = ("en", "zh")
LONGEST = 200  # characters kept of any one value
MOST = 200  # values written of a list

_chosen: str | None = None
_here: ContextVar[str | None] = ContextVar("language", default=None)  # of one request among several


def use(language: str | None) -> None:
    """Speak this language from now on; None asks the environment (PELLUCID_LANG, then LANG)."""
    global _chosen
    _chosen = language


@contextmanager
def speaking(language: str | None) -> Iterator[None]:
    """Speak this language within the block, in this context alone; None changes nothing."""
    outer = _here.set(language or _here.get())
    try:
        yield
    finally:
        _here.reset(outer)


def language() -> str:
    """Return the language in use: "en" or "zh"."""
    if (chosen := _here.get() or _chosen) is not None:
        return chosen
    locale = os.environ.get("PELLUCID_LANG") or os.environ.get("LANG", "")
    return "zh" if locale.lower().startswith("zh") else "en"


@cache
def phrases(language: str) -> dict[str, str]:
    """Return all sentences of one language, by key."""
    text = Path(__file__).with_name(f"{language}.json").read_text(encoding="utf-8")
    sentences: dict[str, str] = json.loads(text)
    return sentences


def say(key: str, **values: object) -> str:
    """Return the sentence of this key, with the values put in; without its clause of what is near where nothing is ("-")."""
    sentence = phrases(language())[key]
    if values.get("near") == "-":
        sentence = re.sub(r"[;；][^;；]*\{near\}[^;；]*", "", sentence)
    return filled(sentence, **values)


def filled(sentence: str, **values: object) -> str:
    """Return a sentence with the values put in."""
    return sentence.format(**{name: Value(plain(value)) for name, value in values.items()})


class Value(str):
    """A value as a sentence has it. As "{count:row|rows}" the first form where it is 1, the second elsewhere."""

    def __format__(self, forms: str) -> str:
        one, bar, several = forms.partition("|")
        return str(self) if not bar else one if self == "1" else several


def paragraph(*sentences: str) -> str:
    """Return sentences one after another, without those that are empty; in Chinese no blank follows a full stop."""
    return ("" if language() == "zh" else " ").join(filter(None, sentences))


class All(tuple[object, ...]):
    """Values that are each written and cut on their own, so that no list ends in the middle of a name. between: the separator."""

    between: str

    def __new__(cls, values: Iterable[object], between: str = ", ") -> "All":
        made = super().__new__(cls, values)
        made.between = between
        return made

    def __str__(self) -> str:
        return self.between.join([*map(plain, self[:MOST]), *(["…"] if len(self) > MOST else [])])


def plain(value: object) -> str:
    """Return a value as text that is safe to print: control characters escaped, and at most 200 characters, of an All for each value."""
    if isinstance(value, All):
        return str(value)
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
