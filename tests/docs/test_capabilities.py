"""docs/capabilities.md: every row's command runs, every exhibit exists, and the number that it names is what they print.

A sample by default; all of it with PELLUCID_FULL=1.
"""

import os
import random
import re
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from io import StringIO
from unittest.mock import patch

import pytest

from capabilities import ROOT, Row, one_line, table
from pellucid.commands import main
from pellucid.exhibits import names

SEED, SAMPLE = 0, 6
GROUPS = "ABCDEFGHIJKL"


ROWS = table()
FULL = os.environ.get("PELLUCID_FULL") == "1"
READING = [row for row in ROWS if row.commands]
CHOSEN = READING if FULL else random.Random(SEED).sample(READING, SAMPLE)


@cache
def printed(command: tuple[str, ...]) -> str:
    """Run a command line in English; return what it prints."""
    out = StringIO()
    with redirect_stdout(out), patch.dict(os.environ, COLUMNS="200"):  # no table is cut
        code = main([*command] if "--lang" in command else [*command, "--lang", "en"])
    assert code == 0, command
    return out.getvalue()


def numbers() -> set[str]:
    """Return every capability that the page has a row for, J3 and G74 to G78 one by one."""
    out: set[str] = set()
    for row in ROWS:
        ids = re.findall(r"([A-L])(\d+)", row.id)
        (letter, first), (_, last) = ids[0], ids[-1]
        out |= {f"{letter}{n}" for n in range(int(first), int(last) + 1)} if " to " in row.id else {a + b for a, b in ids}
    return out


def test_every_capability_has_a_row() -> None:
    running = [f"{letter}{n}" for letter, first, last in ranges() for n in range(first, last + 1)]
    assert numbers() == set(running) and len(running) == 96 + 26 + 6 + 17


def ranges() -> list[tuple[str, int, int]]:
    """Return the first and last number of each group; those of A to I run on."""
    ends = [0, 12, 27, 40, 52, 66, 73, 81, 87, 96]
    return [(letter, a + 1, b) for letter, a, b in zip(GROUPS, ends, ends[1:], strict=False)] + [("J", 1, 26), ("K", 1, 6), ("L", 1, 17)]


def test_what_a_row_names_exists() -> None:
    views = {p.stem for p in (ROOT / "web" / "src" / "views").glob("*.svelte")}
    assert {view for row in ROWS for view in row.views} <= views
    assert {name for row in ROWS for name in row.exhibits} <= set(names())
    assert all(row.reads and (row.commands or row.places) and len(row.places) == len(row.views) for row in ROWS)


def idle(row: Row) -> bool:
    """True if a row's reading would be found whatever ran: it is part of its own command or address, or as short as any number has it."""
    return row.reads in row.where or len(row.reads.encode()) < 4


def test_a_reading_is_of_what_ran() -> None:
    assert [row.id for row in ROWS if idle(row)] == []
    row = next(row for row in ROWS if row.id == "L2")
    assert idle(replace(row, reads="layers.2.attn.q_a.in")) and idle(replace(row, reads="512"))


@pytest.mark.parametrize("row", CHOSEN, ids=lambda row: row.id)
@pytest.mark.quick(4)
def test_a_row_reads_its_number(row: Row) -> None:
    assert row.reads and all(row.reads in one_line(printed(tuple(command))) for command in row.commands), row


def test_a_wrong_number_is_seen() -> None:
    row = next(row for row in ROWS if row.id == "I90")
    assert all("1,557,611,201" not in printed(tuple(command)) for command in row.commands)
