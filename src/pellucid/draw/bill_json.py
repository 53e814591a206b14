"""A bill as JSON: what `pellucid count --json` prints for one model; for several, a list of these."""

from dataclasses import dataclass
from typing import Any

from pellucid.counting import Bill, Number
from pellucid.counting.bounds import Device, parts
from pellucid.counting.fit import devices, held, largest_batch, longest_context, price
from pellucid.counting.ranks import Split, spread
from pellucid.counting.textbook import beside
from pellucid.counting.training import Way, training
from pellucid.counting.variants import kinds, other_kinds
from pellucid.measuring import kept

SCHEMA = 1


@dataclass(frozen=True)
class View:
    """What of a bill is asked for beside the rest. hour: what the device costs an hour."""

    hour: float | None = None
    way: Way | None = None
    split: Split | None = None


def device_of(bill: Bill) -> Device | None:
    """The device that a bill is for."""
    return kept.device(bill.setting.device) if bill.setting.device else None


def document(bill: Bill, view: View = View()) -> dict[str, Any]:
    """The bill."""
    s = bill.setting
    whole = {k: int(n) for k, n in bill.numbers.items() if k.startswith(("flops", "elements")) and k.count(".") == 1}
    out: dict[str, Any] = {
        "schema": SCHEMA,
        "model": bill.model,
        "family": bill.family,
        "attention": kinds(bill.config),
        "layers": len(bill.config.layers) + len(bill.config.encoder or ()),
        "setting": {"context": s.context, "batch": s.batch, "source": s.source, "weights": s.weights, "cache": s.cache, "device": s.device},
        "parameters": {
            "total": int(bill["parameters.total"]),
            "active": int(bill["parameters.active"]),
            "active_without_input": int(bill["parameters.active_without_input"]),
            "buffers": int(bill["buffers.total"]),
            "by_part": {k: int(n) for k, n in bill.within("parameters.by_part")},
        },
        "bytes": {"total": int(bill["bytes.total"]), "by_part": {k: int(n) for k, n in bill.within("bytes.by_part")}},
        "cache": {k: int(n) for k, n in bill.within("cache") if "layers" not in k},
        "flops": {k.removeprefix("flops."): v for k, v in whole.items() if k.startswith("flops")},
        "elements": {k.removeprefix("elements."): v for k, v in whole.items() if k.startswith("elements")},
        "textbook": {
            b.name: {"formula": b.closed.formula, "value": int(b.closed), "counted": b.counted, "because": dict(b.because)}
            for b in beside(bill)
        },
        "bounds": bounds(bill, view.hour),
        "notes": bill.notes,
    }
    if "bytes.dequantised" in bill:
        out["bytes"]["dequantised"] = int(bill["bytes.dequantised"])
    if "cache.bytes" in bill:
        out["cache"]["other_kinds"] = [
            {"kind": name, "bytes_per_token": int(b["cache.bytes_per_token"]), "bytes": int(b["cache.bytes"])}
            for name, b in list(other_kinds(bill))[1:]
        ]
    if view.way is not None:
        out["training"] = {name: {"value": int(n), "formula": n.formula} for name, n in training(bill, view.way).items()}
    if view.split is not None:
        out["ranks"] = over(bill, view.split)
    return out


def bounds(bill: Bill, hour: float | None = None) -> dict[str, Any]:
    """Seconds at best, what fits, and what it costs, on the bill's device; nothing without one."""
    device = device_of(bill)
    if device is None:
        return {}
    all_of_it, weights = held(bill, bill.setting.context, bill.setting.batch), int(bill["bytes.total"])
    told: dict[str, Any] = {
        "device": device.name,
        "memory": int(device.memory),
        "weights": weights,
        "cache": all_of_it - weights,
        "fits": all_of_it <= device.memory,
        "devices": devices(bill, device),
    }
    if "cache.bytes" in bill:
        told |= {"largest_batch": largest_batch(bill, device), "longest_context": longest_context(bill, device)}
    for phase in ("prefill", "decode"):
        if f"flops.{phase}" in bill:
            found = parts(bill, phase, device)
            told[phase] = {
                "seconds": sum(p.seconds for p in found),
                "parts": [
                    {"path": p.path, "layers": p.times, "flops": p.flops, "bytes": p.moved, "seconds": p.seconds, "sets": p.sets}
                    for p in found
                ],
            }
            if hour is not None:
                told[phase]["price_of_a_million_tokens"] = price(bill, phase, device, hour)
    return told


def over(bill: Bill, split: Split) -> dict[str, Any]:
    """What ranks hold and send."""
    found = spread(bill, split)
    return {
        "ranks": split.ranks,
        "split": {"tp": split.tp, "pp": split.pp, "ep": split.ep},
        "stages": [
            {"layers": list(s.layers), "parameters": s.parameters, "weights": s.weights, "cache": s.cache, "sent": told(s.sent)}
            for s in found.stages
        ],
    }


def told(sent: dict[str, dict[str, Number]]) -> dict[str, Any]:
    """Bytes that a rank sends, with their formulas."""
    return {phase: {name: {"value": int(n), "formula": n.formula} for name, n in by.items()} for phase, by in sent.items()}
