"""The last measurement of this machine, in a file of the user's cache, so that `count --device cpu` need not measure."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pellucid import catalog
from pellucid.bench.machine_limits import MachineLimits, Rate
from pellucid.checkpoint.disk import reason, replacing
from pellucid.checkpoint.json_file import read_object
from pellucid.counting.bounds import Device
from pellucid.errors import UseError

SCHEMA = 1


def place() -> Path:
    """Return the path of the file, in XDG_CACHE_HOME or ~/.cache."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "pellucid" / "limits.json"


def keep(limits: MachineLimits) -> Path:
    """Write the limits to the file, readable by its user alone; return the path."""
    file = place()
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as broken:
        raise UseError("file.write", file=file, reason=reason(broken)) from None
    with replacing(file, UseError) as part:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as out:
            json.dump({"schema": SCHEMA, **document(limits)}, out, ensure_ascii=False, indent=1)
    return file


def kept() -> MachineLimits:
    """Return the last measurement. A UseError that says how to make one if there is none."""
    file = place()
    try:
        return parsed(read_object(file, error=UseError))
    except UseError as wrong:
        if wrong.key == "file.missing":
            raise UseError("bench.unmeasured") from None
        raise
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UseError("bench.damaged", file=file) from None


def device(name: str, reads: float | None = None) -> Device | None:
    """Return a device by name: "cpu" is this machine as last measured, all others are the catalogue's; None if unknown.

    A name with "=" describes one: see `Device.described`.

    reads: bytes that a step reads, which tell whether a processor's cache holds them.
    """
    if name == "cpu":
        limits = kept()
        return limits.device if reads is None else limits.reading(reads)
    if "=" in name:
        return Device.described(name)
    entry = catalog.find(catalog.devices(), name)
    return None if entry is None else Device.of(entry)


def known_device(name: str) -> Device:
    """Return a device by name, as `device` does. A UseError with the nearest names if there is none."""
    if (known := device(name)) is None:
        near = ", ".join(catalog.nearest([*catalog.devices(), "cpu"], name))
        raise UseError("count.device.near" if near else "count.device", found=name, near=near)
    return known


def document(limits: MachineLimits) -> dict[str, Any]:
    """Return limits as JSON."""

    def to_json(rate: Rate) -> dict[str, float]:
        return {"median": rate.median, "best": rate.best}

    return {
        "cpu": limits.cpu,
        "memory": limits.memory,
        "threads": limits.threads,
        "block": limits.block,
        "read": {str(threads): to_json(rate) for threads, rate in limits.read.items()},
        "product": {dtype: to_json(rate) for dtype, rate in limits.product.items()},
        "torch": limits.torch,
        "kernels": limits.kernels,
        "date": limits.date,
        **({"blocks": {str(size): rate for size, rate in limits.blocks.items()}} if limits.blocks else {}),
    }


def parsed(table: Mapping[str, Any]) -> MachineLimits:
    """Return the limits in what `document` made; anything else is a KeyError, TypeError or ValueError."""

    def rate(given: Mapping[str, Any]) -> Rate:
        rate_read = Rate(float(given["median"]), float(given["best"]))
        if not all(math.isfinite(x) and x > 0 for x in (rate_read.median, rate_read.best)):
            raise ValueError(given)
        return rate_read

    if table["schema"] != SCHEMA:
        raise ValueError(table["schema"])
    read = {int(threads): rate(given) for threads, given in table["read"].items()}
    product = {str(dtype): rate(given) for dtype, given in table["product"].items()}
    memory, threads, block = (int(table[name]) for name in ("memory", "threads", "block"))
    kernels = None if table["kernels"] is None else str(table["kernels"])
    if not read or "float32" not in product:
        raise KeyError("float32")
    blocks = {int(size): float(given) for size, given in table.get("blocks", {}).items()}
    if not all(size > 0 and math.isfinite(x) and x > 0 for size, x in blocks.items()):
        raise ValueError(blocks)
    return MachineLimits(str(table["cpu"]), memory, threads, block, read, product, str(table["torch"]), kernels, str(table["date"]), blocks)
