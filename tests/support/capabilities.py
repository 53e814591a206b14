"""docs/capabilities.md as rows: what is shown, where, and what is read there."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl

from pellucid.exhibits import names

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Row:
    """A row of the table. where: its commands, exhibits and views.  reads: what each of them must show."""

    id: str
    where: str
    reads: str

    @property
    def commands(self) -> list[list[str]]:
        """Return the command lines that the row names, an exhibit's too."""
        own = [shlex.split(c)[1:] for c in re.findall(r"`(pellucid [^`]+)`", self.where)]
        return own + [["exhibit", name] for name in self.exhibits if name in names()]

    @property
    def exhibits(self) -> list[str]:
        """Return the names of exhibits."""
        return re.findall(r"exhibit `([a-z]+)`", self.where)

    @property
    def views(self) -> list[str]:
        """Return the names of views."""
        return re.findall(r"view ([A-Z]\w+)", self.where)

    @property
    def places(self) -> list[dict[str, str]]:
        """Return the fields of the addresses at which views are opened."""
        return [dict(parse_qsl(fragment)) for fragment in re.findall(r"`#([^`]+)`", self.where)]


def table() -> list[Row]:
    """Return the rows of the page's tables of what is shown; the last table, of features, names tests instead."""
    text = (ROOT / "docs" / "capabilities.md").read_text(encoding="utf-8").partition("\n## Features\n")[0]
    return [Row(m[1], m[2], m[3].strip()) for m in re.finditer(r"^\| ([A-L]\d.*?) \| .*? \| (.*?) \| (.*?)\|$", text, re.M)]


def one_line(text: str) -> str:
    """Return a text with every run of white space as one space: lines are broken where the screen ends."""
    return " ".join(text.split())
