"""A draft model as lines of a terminal: its memory beside the model's, and tokens a second by the accepted share of its guesses."""

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from pellucid.documents.amount import figures, scaled, seconds
from pellucid.documents.number import count
from pellucid.messages import say
from pellucid.terminal.bounds import headed
from pellucid.terminal.table import Column, prose, table


def draft_lines(report: Mapping[str, Any], width: int) -> list[Text]:
    """Write the lines. report: `draft` of a bill's JSON."""
    sizes = {name: scaled(report[name], "B") for name in ("weights", "cache", "held")}
    kind = {True: "count.draft.fits", False: "count.draft.large", None: "count.draft.held"}[report.get("fits")]
    out = [Text(say("count.draft", model=report["model"], parameters=count(report["parameters"])), "bold")]
    out += prose(say(kind, **sizes), width)
    timed = "fits" in report
    titles = ["count.draft.accepted", "count.draft.guesses", "count.draft.tokens"]
    rows = headed(*map(say, [*titles, *(["count.draft.step", "count.draft.rate", "count.draft.over"] if timed else [])]))
    for row in report["rows"]:
        cells = [f"{row['accepted']:g}", str(row["guesses"]), f"{row['tokens_a_step']:.3g}"]
        if timed:
            cells += [seconds(row["seconds"]), figures(row["tokens_per_second"]), f"×{row['over_plain']:.3g}"]
        rows.append([*cells])
    out += table(rows, [Column(), *[Column(">")] * (5 if timed else 2)])
    return out + prose(say("count.draft.note"), width, "dim")
