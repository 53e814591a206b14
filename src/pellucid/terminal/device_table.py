"""The catalogue's devices as a table: memory, bandwidth, dense peaks and links."""

from typing import Any

from pellucid import catalog
from pellucid.documents.amount import Amount
from pellucid.messages import say
from pellucid.terminal.grid import Cell, Grid

PEAKS = ("float32", "float16", "bfloat16", "int8", "fp8", "nvfp4", "mxfp4")


def devices() -> Grid:
    """Make the table of every device of the catalogue, in its order."""
    header = [
        say("count.offers.device"), say("count.device.memory"), say("count.device.bandwidth"), *(f"{dtype} FLOP/s" for dtype in PEAKS),
        say("count.device.link"), say("count.table.released"), say("count.device.name"),
    ]  # fmt: skip
    return Grid(say("count.table.devices"), header, [row(entry) for entry in catalog.devices().values()], [say("count.device.sources")])


def row(entry: dict[str, Any]) -> list[Cell]:
    """Return a device's cells."""
    peaks: list[Cell] = [Amount(entry["peak"][dtype], "FLOP/s") if dtype in entry["peak"] else None for dtype in PEAKS]
    link: Cell = Amount(entry["link"], "B/s") if "link" in entry else None
    return [entry["id"], Amount(entry["memory"], "B"), Amount(entry["bandwidth"], "B/s"), *peaks, link, entry["date"], entry["name"]]
