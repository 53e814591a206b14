"""Lower bounds of time: how fast the counted products and bytes can go at best, by part, and whether compute or bandwidth sets it.

A part takes at least the time of its products at the device's dense peak, and of its bytes at the memory's bandwidth. Parts run one after
another, so their bounds add up. Activations may stay on the chip and are not counted as bytes, so that the bound stays a bound.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pellucid.counting.bill import Bill, Counted, pairs, reads_others, share_seen
from pellucid.counting.distinct import PLACE
from pellucid.errors import UseError

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "fp8", "int8": "int8", "int4": "int4"}
OTHERS = ("mem", "bw", "link")
PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


@dataclass(frozen=True)
class Device:
    """A device. memory: bytes that its driver gives to a program.  bandwidth: bytes a second.  peak: FLOP a second by dtype.

    source: of bandwidth and peak;  memory_source: of the memory, which a datasheet rounds to another number.
    link: bytes a second that it can send to others, None if that is not known;  link_source: of it.
    """

    name: str
    memory: float
    bandwidth: float
    peak: Mapping[str, float]
    source: str = ""
    memory_source: str = ""
    link: float | None = None
    link_source: str = ""

    @staticmethod
    def of(entry: Mapping[str, Any]) -> "Device":
        source = f"{entry['source']}, {entry['date']}"
        of_link = entry.get("link"), entry.get("link_source", "")
        return Device(entry["name"], entry["memory"], entry["bandwidth"], entry["peak"], source, entry["memory_source"], *of_link)

    @staticmethod
    def described(text: str) -> "Device":
        """Return the device of a line such as "mem=48G,bw=864G,bf16=181T": bytes, bytes a second, FLOP a second by dtype.

        A UseError names the part of the line that is wrong. Without fp32 the least peak stands for it: no device multiplies faster in it.
        """
        given: dict[str, float] = {}
        for item in text.split(","):
            match = re.fullmatch(r"(\w+)=(\d+(?:\.\d+)?(?:e\d+)?)([kMGTP]?)", item.strip())
            if match is None or match[1] not in (*OTHERS, *DTYPES) or match[1] in given or not 0 < float(match[2]) < 1e30:
                raise UseError("count.device.item", found=item, allowed=", ".join((*OTHERS, *DTYPES)))
            given[match[1]] = float(match[2]) * PREFIXES[match[3]]
        peak = {DTYPES[name]: value for name, value in given.items() if name in DTYPES}
        for name, there in (("mem", "mem" in given), ("bw", "bw" in given), ("bf16", bool(peak))):
            if not there:
                raise UseError("count.device.lacks", found=text, name=name)
        return Device(
            text, given["mem"], given["bw"], {"float32": min(peak.values()), **peak}, text, link=given.get("link"), link_source=text
        )


class TimeBound:
    """What takes at least the time of its products, `compute`, and of the bytes that it moves, `memory`, in seconds."""

    compute: float
    memory: float

    @property
    def seconds(self) -> float:
        return max(self.compute, self.memory)

    @property
    def sets(self) -> str:
        """Return what sets the bound: "compute" or "bandwidth"."""
        return "compute" if self.compute > self.memory else "bandwidth"


@dataclass(frozen=True)
class Part(TimeBound):
    """One part of a phase: flops as the mask leaves them, bytes that must move, and seconds at best, for all layers of its kind."""

    path: str
    times: int
    flops: float
    moved: float
    compute: float
    memory: float

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flops / self.moved if self.moved else float("inf")


class Holder(Protocol):
    """The share of a model on one device: all of it, or a rank's."""

    def copies(self, path: str, times: int) -> int:
        """Return how many of a path's `times` layers are here."""

    def work(self, path: str) -> float:
        """Return the share of one such layer's products that is done here."""

    def bytes(self, c: Counted) -> float:
        """Return the bytes of one such weight here."""

    def row_bytes(self, path: str) -> float:
        """Return the bytes of one row of such a layer's cache, over all requests served here."""

    def state_bytes(self, path: str) -> float:
        """Return the bytes of such a layer's states, over all requests served here."""

    def memory(self) -> float:
        """Return the bytes of what a decoder's layer keeps of a source, all its rows, over all requests served here."""


@dataclass(frozen=True)
class WholeModel:
    """A device that has all of the model."""

    bill: Bill

    def copies(self, path: str, times: int) -> int:
        return times

    def work(self, path: str) -> float:
        return 1.0

    def bytes(self, c: Counted) -> float:
        return float(self.bill[f"bytes.{c.path}"])

    def row_bytes(self, path: str) -> float:
        return float(self.bill[f"cache.{path}"]) * self.bill.setting.batch

    def state_bytes(self, path: str) -> float:
        return float(self.bill[f"states.{path}"]) * self.bill.setting.batch

    def memory(self) -> float:
        s = self.bill.setting
        return float(self.bill["cache.bytes_per_source_token"]) / len(self.bill.config.layers) * (s.source or s.context) * s.batch


def unit(path: str) -> str:
    """Return the part that is timed as one: a layer's attn, cross or ffn with its norm, or a module outside of layers."""
    match = PLACE.fullmatch(path)
    if match is None:
        return path.partition(".")[0] if path.split(".")[0] not in ("encoder", "decoder") else ".".join(path.split(".")[:2])
    inner = match["rest"].split(".")[1] if match["rest"] else ""
    return f"{match['stack']}layers.{match['number']}.{inner.removesuffix('_post_norm').removesuffix('_norm')}".rstrip(".")


def parts(bill: Bill, phase: str, device: Device, holder: Holder | None = None, rows: int = 1) -> list[Part]:
    """Return the parts of a phase, "prefill" or "decode", in the order in which they run. holder: the device's share, all if None.

    rows: of each request in a decode step, the newest token and guesses behind it.
    """
    s, crosses = bill.setting, bill.config.encoder is not None  # such a decoder's first step has one row, whatever the source has
    counted = 1 if phase == "decode" or crosses else s.context  # rows that the bill's products are of
    rows, before = (rows, s.context) if phase == "decode" else (counted, 0)
    own = WholeModel(bill) if holder is None else holder
    dtype = s.weights if s.weights in device.peak else s.activations
    peak = device.peak.get(dtype) or device.peak["float32"]
    flops: dict[str, float] = {}
    for name, number in bill.below(f"flops.{phase}"):
        value = float(number) * own.work(name) * (rows / counted)
        if f"cache.{name}" in bill or reads_others(bill, name):
            keys = (before + rows) / (before + counted) if bill.viewer(name).attn.heads else 1.0
            value *= keys * shown(bill, name, rows, before)
        flops[unit(name)] = flops.get(unit(name), 0.0) + own.copies(name, multiplicity(bill, name)) * value
    moved: dict[str, float] = {}
    for c in bill.weights:
        table = c.path in ("embed.weight", "positions.weight", "types.weight") or c.path.endswith(".input.table.weight")
        if table and not (c.path == "embed.weight" and bill.config.tied):
            continue  # a few rows of a table are read, not the table
        if phase == "decode" and (c.path.startswith("encoder.") or ".cross.k." in c.path or ".cross.v." in c.path):
            continue  # the source was read before
        where = "head" if c.path == "embed.weight" else unit(c.path)
        times = uses(bill, c)
        share = 1.0 if c.active == 1 else chosen(bill, c.path, rows * s.batch)
        moved[where] = moved.get(where, 0.0) + own.copies(where if where == "head" else c.path, times) * share * own.bytes(c)
    for name, _ in bill.below("cache"):
        if PLACE.fullmatch(name):
            read = pairs(bill.viewer(name), 1, before) + rows - 1 if phase == "decode" else rows
            moved[unit(name)] = moved.get(unit(name), 0.0) + own.copies(name, multiplicity(bill, name)) * own.row_bytes(name) * read
    for name, _ in bill.below("states"):  # read and written, once a step
        ways = 2 if phase == "decode" else 1
        moved[unit(name)] = moved.get(unit(name), 0.0) + own.copies(name, multiplicity(bill, name)) * own.state_bytes(name) * ways
    if phase == "decode" and "cache.bytes_per_source_token" in bill:
        for path in [p for p in moved if p.endswith(".cross")]:
            moved[path] += own.copies(path, multiplicity(bill, path)) * own.memory()
    out = []
    for path in dict.fromkeys([*flops, *moved]):
        if times := own.copies(path, multiplicity(bill, path)):
            f, m = flops.get(path, 0.0), moved.get(path, 0.0)
            out.append(Part(path, times, f, m, f / peak, m / device.bandwidth))
    return out


def uses(bill: Bill, c: Counted) -> int:
    """Return how often a step reads a weight and those like it: blocks that share weights read them one after another."""
    return multiplicity(bill, c.path) if bill.config.shares else c.times


def multiplicity(bill: Bill, path: str) -> int:
    """Return how many layers a path stands for."""
    match = PLACE.fullmatch(path)
    return 1 if match is None else bill.reduced.kind(match).count


def shown(bill: Bill, path: str, rows: int, before: int) -> float:
    """Return the share of the full square that a layer's mask leaves."""
    return float(share_seen(bill.viewer(path), rows, before))


def chosen(bill: Bill, path: str, tokens: int) -> float:
    """Return the expected share of experts with at least one token, if all are equally likely: 1 - (1 - A/E)^tokens."""
    return float(1 - (1 - float(bill.layer(path).ffn.active)) ** tokens)


def moved(bill: Bill) -> float:
    """Return the bytes that a step must read: a decode step, or the one forward of an encoder."""
    phase = "decode" if "flops.decode" in bill else "prefill"
    return sum(p.moved for p in parts(bill, phase, Device("", 0, 1.0, {"float32": 1.0})))
