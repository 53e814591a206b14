"""docs/capabilities.md, Features: every row says yes, and every test that it names is there."""

import ast
import re
from collections.abc import Iterator
from functools import cache

from capabilities import ROOT

TEXT = (ROOT / "docs" / "capabilities.md").read_text(encoding="utf-8").partition("\n## Features\n")[2]
COUNT = 36


def rows(text: str) -> dict[str, tuple[str, list[str]]]:
    """Return what each row of the table says, and the tests that it names."""
    lines = re.findall(r"^\| (F\d+) \| [^|]+ \| ([^|]*) \| ([^|]+) \|$", text, re.M)
    return {number: (verdict.strip(), re.findall(r"`([^`]+)`", tests)) for number, verdict, tests in lines}


@cache
def functions(file: str) -> set[str]:
    """Return the names of the test functions of a file below tests/; of no file none."""
    path = ROOT / "tests" / file
    if not path.is_file():
        return set()
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return {n.name for n in body if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")}


def missing(table: dict[str, tuple[str, list[str]]]) -> Iterator[str]:
    """Yield every row that is lacking or names no test, and every test that is not there."""
    for number in (f"F{n}" for n in range(1, COUNT + 1)):
        verdict, tests = table.get(number, ("", []))
        if verdict != "yes" or not tests:
            yield number
        for test in tests:
            file, _, name = test.partition("::")
            if name not in functions(file):
                yield f"{number} {test}"


def test_every_feature_has_its_tests() -> None:
    table = rows(TEXT)
    assert [*missing(table)] == [] and len(table) == COUNT


def test_a_row_that_shows_nothing_is_seen() -> None:
    """The mutants: a test that was renamed, a row without one, a row that is gone."""
    known = rows(TEXT)
    assert [*missing(known | {"F7": ("yes", ["page/test_page.py::test_a_weight"])})] == ["F7 page/test_page.py::test_a_weight"]
    assert [*missing(known | {"F7": ("yes", [])})] == [*missing(known | {"F7": ("in part", known["F7"][1])})] == ["F7"]
    assert [*missing({number: row for number, row in known.items() if number != "F9"})] == ["F9"]
