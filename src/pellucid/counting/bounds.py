"""How fast at best: the time below which no run of these products and these bytes can go, by part, and what sets it.

A part takes at least as long as its products at the device's dense peak, and as its bytes at the memory's bandwidth. Parts follow one
another, so their bounds add up. Activations that may stay on the chip are not counted as bytes: that keeps a bound a bound.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pellucid.counting.bill import Bill, Counted, pairs
from pellucid.counting.distinct import PLACE


@dataclass(frozen=True)
class Device:
    """memory in bytes, as its driver gives it to a program; bandwidth in bytes a second, peak in FLOP a second by dtype.

    source: of bandwidth and peak;  memory_source: of the memory, which a datasheet rounds to another number.
    """

    name: str
    memory: float
    bandwidth: float
    peak: Mapping[str, float]
    source: str = ""
    memory_source: str = ""

    @staticmethod
    def of(entry: Mapping[str, Any]) -> "Device":
        source = f"{entry['source']}, {entry['date']}"
        return Device(entry["name"], entry["memory"], entry["bandwidth"], entry["peak"], source, entry["memory_source"])


@dataclass(frozen=True)
class Part:
    """One part of one phase: flops as a mask leaves them, bytes that must move, each for all layers of its kind; seconds at best."""

    path: str
    times: int
    flops: float
    moved: float
    compute: float
    memory: float

    @property
    def seconds(self) -> float:
        return max(self.compute, self.memory)

    @property
    def sets(self) -> str:
        """What sets the bound: "compute" or "bandwidth"."""
        return "compute" if self.compute > self.memory else "bandwidth"

    @property
    def intensity(self) -> float:
        """FLOP a byte."""
        return self.flops / self.moved if self.moved else float("inf")


class Holder(Protocol):
    """What a device does of a model: all of it, or a rank's share."""

    def copies(self, path: str, times: int) -> int:
        """How many of the layers of a path it has."""

    def work(self, path: str) -> float:
        """Its share of the products of one such layer."""

    def bytes(self, c: Counted) -> float:
        """Of one such weight."""

    def row_bytes(self, path: str) -> float:
        """Bytes of a row that one such layer's past has, of all requests that it serves."""

    def memory(self) -> float:
        """The same of what a decoder's layer keeps of a source, all its rows."""


@dataclass(frozen=True)
class WholeModel:
    """One device has all of it."""

    bill: Bill

    def copies(self, path: str, times: int) -> int:
        return times

    def work(self, path: str) -> float:
        return 1.0

    def bytes(self, c: Counted) -> float:
        return float(self.bill[f"bytes.{c.path}"])

    def row_bytes(self, path: str) -> float:
        return float(self.bill[f"cache.{path}"]) * self.bill.setting.batch

    def memory(self) -> float:
        s = self.bill.setting
        return float(self.bill["cache.bytes_per_source_token"]) / len(self.bill.config.layers) * (s.source or s.context) * s.batch


def unit(path: str) -> str:
    """The part that is timed as one: a layer's attn, cross or ffn with its norm, or what stands outside of layers."""
    match = PLACE.fullmatch(path)
    if match is None:
        return path.partition(".")[0] if path.split(".")[0] not in ("encoder", "decoder") else ".".join(path.split(".")[:2])
    inner = match["rest"].split(".")[1] if match["rest"] else ""
    return f"{match['stack']}layers.{match['number']}.{inner.removesuffix('_post_norm').removesuffix('_norm')}".rstrip(".")


def parts(bill: Bill, phase: str, device: Device, holder: Holder | None = None) -> list[Part]:
    """The parts of a phase, "prefill" or "decode", in the order in which they run. holder: what the device has of them, all where None."""
    s, crosses = bill.setting, bill.config.encoder is not None  # such a decoder's first step has one row, whatever the source has
    rows, before = (1, s.context) if phase == "decode" else (1 if crosses else s.context, 0)
    own = WholeModel(bill) if holder is None else holder
    dtype = s.weights if s.weights in device.peak else s.activations
    peak = device.peak.get(dtype) or device.peak["float32"]
    flops: dict[str, float] = {}
    for name, number in bill.below(f"flops.{phase}"):
        value = float(number) * own.work(name) * (shown(bill, name, rows, before) if f"cache.{name}" in bill else 1.0)
        flops[unit(name)] = flops.get(unit(name), 0.0) + own.copies(name, multiplicity(bill, name)) * value
    moved: dict[str, float] = {}
    for c in bill.weights:
        if c.path in ("embed.weight", "positions.weight", "types.weight") and not (c.path == "embed.weight" and bill.config.tied):
            continue  # a few rows of a table are read, not the table
        if phase == "decode" and (c.path.startswith("encoder.") or ".cross.k." in c.path or ".cross.v." in c.path):
            continue  # the source was read before
        where = "head" if c.path == "embed.weight" else unit(c.path)
        share = 1.0 if c.active == 1 else chosen(bill, c.path, rows * s.batch)
        moved[where] = moved.get(where, 0.0) + own.copies(where if where == "head" else c.path, c.times) * share * own.bytes(c)
    for name, _ in bill.below("cache"):
        if PLACE.fullmatch(name):
            read = pairs(bill.viewer(name), 1, before) if phase == "decode" else rows
            moved[unit(name)] = moved.get(unit(name), 0.0) + own.copies(name, multiplicity(bill, name)) * own.row_bytes(name) * read
    if phase == "decode" and "cache.bytes_per_source_token" in bill:
        for path in [p for p in moved if p.endswith(".cross")]:
            moved[path] += own.copies(path, multiplicity(bill, path)) * own.memory()
    out = []
    for path in dict.fromkeys([*flops, *moved]):
        if times := own.copies(path, multiplicity(bill, path)):
            f, m = flops.get(path, 0.0), moved.get(path, 0.0)
            out.append(Part(path, times, f, m, f / peak, m / device.bandwidth))
    return out


def multiplicity(bill: Bill, path: str) -> int:
    """How many layers a path stands for."""
    match = PLACE.fullmatch(path)
    return 1 if match is None else bill.reduced.kind(match).count


def shown(bill: Bill, path: str, rows: int, before: int) -> float:
    """How much of the full square a layer's mask leaves."""
    return pairs(bill.viewer(path), rows, before) / (rows * (before + rows))


def chosen(bill: Bill, path: str, tokens: int) -> float:
    """How much of the experts some token of a step visits, where all are equally likely: 1 - (1 - A/E)^tokens."""
    return float(1 - (1 - float(bill.layer(path).ffn.active)) ** tokens)


def moved(bill: Bill) -> float:
    """Bytes that a step must read: a decode step, or the one forward of a model that has none."""
    phase = "decode" if "flops.decode" in bill else "prefill"
    return sum(p.moved for p in parts(bill, phase, Device("", 0, 1.0, {"float32": 1.0})))
