"""A bill's weights one by one, and its numbers along one setting, as JSON."""

from collections.abc import Iterator
from math import log2
from typing import Any

from pellucid import catalog
from pellucid.counting import Bill
from pellucid.counting.bounds import multiplicity
from pellucid.counting.distinct import PLACE
from pellucid.counting.fit import bytes_held
from pellucid.counting.formats import DTYPES
from pellucid.counting.ranks import Split, pace
from pellucid.documents.count import device_of

REACH = 1 << 20  # tokens, of a model that has no table of positions to end it
TOGETHER = 1 << 10  # requests


def weights_to_json(bill: Bill) -> Iterator[dict[str, Any]]:
    """Yield the weights of a bill as JSON."""
    for c in bill.weights:
        place = PLACE.fullmatch(c.path)
        layers = list(bill.reduced.kind(place).numbers) if place is not None and c.times == multiplicity(bill, c.path) else None
        w = c.weight
        counted = bill[f"{'parameters' if w.parameter else 'buffers'}.{c.path}"]
        yield {
            "path": c.path, "part": c.part, "dims": w.dims, "axes": w.axes, "shape": list(w.shape), "parameter": w.parameter,
            "times": c.times, "layers": layers, "active": float(c.active), "count": w.count, "bytes": int(bill[f"bytes.{c.path}"]),
            "formulas": {"count": counted.formula, "bytes": bill[f"bytes.{c.path}"].formula},
        }  # fmt: skip


def values(bill: Bill, what: str) -> list[Any]:
    """Return the values of the setting `what`: powers of 2 up to the model's limit, all formats, or all devices."""
    if what == "dtype":
        return list(DTYPES)
    if what == "device":
        return list(catalog.devices())
    most = TOGETHER if what == "batch" else bill.config.positions or max(REACH, bill.setting.context)
    least = 7 if what == "context" and most > 1 << 8 else 0
    powers = [1 << i for i in range(least, int(log2(most)) + 1)]
    return powers if powers[-1] == most else [*powers, most]


def point(value: Any, bill: Bill, split: Split) -> dict[str, Any]:
    """Return the numbers of `bill` that a curve draws, null if it has none. first, next: best seconds of all ranks of `split`."""
    device = device_of(bill)
    out = {"at": value, "bytes": int(bill["bytes.total"]), "cache": int(bill["cache.bytes"]) if "cache.bytes" in bill else None}
    for phase in ("prefill", "decode"):
        out[phase] = int(bill[f"flops.{phase}"]) if f"flops.{phase}" in bill else None
    for name, phase in (("first", "prefill"), ("next", "decode")):
        out[name] = None if device is None or out[phase] is None else pace(bill, split, phase, device).seconds
    fits = None if device is None else bytes_held(bill, bill.setting.context, bill.setting.batch) <= device.memory * split.ranks
    return out | {"fits": fits}
