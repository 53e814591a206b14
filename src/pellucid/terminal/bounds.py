"""Bounds as lines of a terminal: a phase's least time, tokens a second and price, and its parts, which add up to it."""

from collections.abc import Sequence

from rich.text import Text

from pellucid.counting.bounds import Device, Part
from pellucid.documents.amount import figures, scaled, seconds
from pellucid.documents.number import percent
from pellucid.messages import say
from pellucid.terminal.table import Cell, Column, prose, table

SETS = {"compute": "count.compute", "bandwidth": "count.bandwidth"}
COLUMNS = [Column(), Column(">", style="dim"), *[Column(">")] * 5, Column(style="dim")]


def set_by(name: str) -> str:
    """Return what sets a bound, in the user's language."""
    return say(SETS[name])


def phase(title: str, rows_of: Sequence[Part], width: int) -> list[Text]:
    """Write a phase's title, and a row for each of its parts with their shares of the time."""
    total = sum(p.seconds for p in rows_of)
    rows = headed(
        say("count.head.part"), say("count.head.layers"), say("count.head.products"), say("count.head.moved"),
        say("count.head.intensity"), say("count.head.least"), say("count.head.share"), say("count.head.sets"),
    )  # fmt: skip
    for p in rows_of:
        if p.seconds:
            amounts = [scaled(p.flops, "FLOP"), scaled(p.moved, "B"), f"{p.intensity:.3g}", seconds(p.seconds)]
            rows.append([p.path, f"×{p.times}", *amounts, percent(p.seconds / total), set_by(p.sets)])
    return [*prose(title, width), *table(rows, COLUMNS, indent=2)]


def headed(*titles: str) -> list[list[Cell]]:
    """Return the titles of a table's columns as its first row."""
    return [[Text(title, "dim") for title in titles]]


def sources(device: Device, width: int) -> list[Text]:
    """Write the sources of a device's numbers."""
    sentences = [f"{say('count.sources')} {device.source}"]
    sentences += [f"{say('count.sources.memory')} {device.memory_source}"] if device.memory_source else []
    return [line for sentence in sentences for line in prose(sentence, width, "dim")]


def priced(title: str, price: float | None, hour: float | None) -> str:
    """Return a phase's title, with the price of a million tokens if the price of an hour is known."""
    return title if hour is None or price is None else say("count.price", bound=title, price=figures(price), hour=f"{hour:g}")
