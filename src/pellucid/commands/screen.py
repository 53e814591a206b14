"""The output of a command: text or JSON on stdout, progress and errors on stderr; its width, and whether it has colours.

`--json`, `-q` and `--lang` may stand anywhere before `--`, so they are taken off the command line before it is read.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

from pellucid.errors import UseError
from pellucid.messages import LANGUAGES

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

PIPED = 132  # columns without a terminal if COLUMNS is not set
PATIENCE = 0.5  # seconds that go by without progress on the screen


@dataclass(frozen=True)
class CommonOptions:
    """The options that every command has."""

    json: bool = False
    quiet: bool = False
    language: str | None = None


def common_options(given: Sequence[str]) -> tuple[list[str], CommonOptions]:
    """Return the command line without the common options, and these."""
    stop = given.index("--") if "--" in given else len(given)
    rest: list[str] = []
    js = quiet = False
    language: str | None = None
    head = iter(given[:stop])
    for word in head:
        if word == "--json":
            js = True
        elif word in ("-q", "--quiet"):
            quiet = True
        elif word == "--lang" or word.startswith("--lang="):
            language = word.removeprefix("--lang=") if "=" in word else next(head, "")
            if language not in LANGUAGES:
                raise UseError("command.lang", found=language, allowed=", ".join(LANGUAGES))
        else:
            rest.append(word)
    return [*rest, *given[stop:]], CommonOptions(js, quiet, language)


@dataclass
class Screen:
    """The output of one command."""

    json: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="replace")  # a terminal that cannot show a sign shows ?

    @cached_property
    def console(self) -> "Console":
        from rich.console import Console

        return Console(file=sys.stdout, highlight=False, markup=False, emoji=False)

    @property
    def colour(self) -> bool:
        """True if stdout is a terminal that shows colours and NO_COLOR is not set."""
        return self.console.is_terminal and self.console.color_system is not None and not self.console.no_color

    @property
    def width(self) -> int:
        """Return the columns of the terminal or of COLUMNS, else enough for a log."""
        return self.console.width if self.console.is_terminal or "COLUMNS" in os.environ else PIPED

    def lines(self, lines: "Iterable[Text]") -> None:
        """Print lines without wrapping, in colour only if stdout shows it."""
        from rich.text import Text

        text = Text("\n").join(lines)
        if self.colour:
            self.console.print(text, soft_wrap=True)
        else:
            self.text(text.plain + "\n")
        sys.stdout.flush()

    def text(self, text: str) -> None:
        """Write to stdout at once."""
        sys.stdout.write(text)
        sys.stdout.flush()

    def document(self, table: Mapping[str, Any] | list[dict[str, Any]]) -> None:
        """Print a JSON document on one line; a number that JSON lacks is a mistake of its maker."""
        self.text(json.dumps(table, ensure_ascii=False, allow_nan=False) + "\n")

    def note(self, sentence: str) -> None:
        """Print a line of progress on stderr, unless -q."""
        if not self.quiet:
            print(sentence, file=sys.stderr, flush=True)

    def fault(self, sentence: str) -> None:
        """Print the one line of an error."""
        print(f"pellucid: {sentence}", file=sys.stderr, flush=True)

    def bar(self, title: str) -> Callable[[int, int], None]:
        """Return a function that shows done / total on stderr's last line, if that is a terminal."""
        if self.quiet or not sys.stderr.isatty():
            return lambda done, total: None

        started: list[float] = []
        shown: list[float] = []

        def show(done: int, total: int) -> None:
            now = time.monotonic()
            started.append(now)
            if done >= total and shown:
                sys.stderr.write("\r\x1b[K")
            elif done < total and now - started[0] > PATIENCE and (not shown or now - shown[-1] > PATIENCE / 4):
                shown.append(now)
                sys.stderr.write(f"\r{title} {100 * done // total}%")
            sys.stderr.flush()

        return show

    def close(self) -> None:
        """Point stdout at /dev/null once its reader has gone, so that Python's last flush cannot fail."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


class MutedScreen(Screen):
    """The screen of a process that runs what another one shows. It prints an error alone."""

    def lines(self, lines: "Iterable[Text]") -> None:
        pass

    def text(self, text: str) -> None:
        pass

    def note(self, sentence: str) -> None:
        pass

    def bar(self, title: str) -> Callable[[int, int], None]:
        return lambda done, total: None
