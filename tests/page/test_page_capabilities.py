"""docs/capabilities.md: every view that a row names opens at its address, and shows what the row reads there.

A third of the rows by default; all of them with PELLUCID_FULL=1.
"""

import os

import pytest

from browser import Tab
from capabilities import Row, one_line, table

ROWS = [row for row in table() if row.places]
CHOSEN = ROWS if os.environ.get("PELLUCID_FULL") == "1" else ROWS[::3]


def shown(tab: Tab, place: dict[str, str]) -> str:
    """Return the text of the page at a place, as it is shown."""
    tab.go("en", **place)
    tab.settle()
    return one_line(tab.page.inner_text("body"))


@pytest.mark.parametrize("row", CHOSEN, ids=lambda row: row.id)
@pytest.mark.quick(4)
def test_a_view_reads_its_number(tab: Tab, row: Row) -> None:
    assert all(row.reads in shown(tab, place) for place in row.places)


def test_another_number_would_be_seen(tab: Tab) -> None:
    """The mutant: another head's share."""
    row = next(row for row in ROWS if row.id == "B18")
    assert row.reads not in shown(tab, row.places[0] | {"head": "1"})
