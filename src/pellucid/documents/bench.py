"""The measurements of `pellucid bench` as JSON: the phases of a model beside their bounds, verdicts null if the machine was busy."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pellucid.bench.idle import Idle
from pellucid.bench.peers import Served
from pellucid.bench.timing import AgainstBound, Timed
from pellucid.counting import Bill
from pellucid.counting.bounds import Device, moved

SCHEMA = 1
Phases = Sequence[tuple[Timed, AgainstBound, list[AgainstBound]]]


def document(bill: Bill, random: bool, phases: Phases, device: Device, served: Served, idle: Idle) -> dict[str, Any]:
    """Return the measured phases beside their bounds as JSON. Ratios are null if the machine was not idle."""

    def bound_to_json(x: AgainstBound) -> dict[str, Any]:
        return {"seconds": x.seconds, "bound": x.bound, "ratio": x.ratio if idle.quiet else None}

    s = bill.setting
    return {
        "model": bill.model,
        "family": bill.family,
        "setting": {"context": s.context, "dtype": s.weights, "random_weights": random},
        "idle": {"quiet": idle.quiet, "others": idle.others, "steadiness": idle.steadiness},
        "phases": {
            timed.phase: bound_to_json(measured)
            | {
                "error": measured.error if idle.quiet else None,
                "tokens_per_second": tokens_per_second(bill, measured),
                "runs": len(timed.full),
                "planned": timed.planned,
                "outside": timed.outside,
                "share": bandwidth_share(bill, measured, device) if timed.phase == "decode" and idle.quiet else None,
                "eager": statistics.median(timed.eager),
                "parts": [{"path": p.path, "layers": p.layers, **bound_to_json(p), "sets": p.sets} for p in parts],
            }
            for timed, measured, parts in phases
        },
        **engine_document(served),
    }


def engine_document(served: Served) -> dict[str, Any]:
    """Return the engine's measurements as JSON. One that was not requested is null."""
    first, batch, other = served.first, served.batch, served.against
    return {
        "first_token": None if first is None else asdict(first),
        "crowd": None if batch is None else {**asdict(batch), "tokens_per_second": batch.rate},
        "against": None
        if other is None
        else {
            "peer": other.peer,
            "version": other.version,
            "new": other.new,
            "pairs": [
                {
                    side: {"seconds": seconds, "after_first": after_first}
                    for side, (seconds, after_first) in zip(("ours", "theirs"), pair, strict=True)
                }
                for pair in zip(other.ours, other.theirs, strict=True)
            ],
            "ratio": other.ratio(1),
            "ratio_with_prompt": other.ratio(0),
        },
    }


def bandwidth_share(bill: Bill, decode: AgainstBound, device: Device) -> float:
    """Return the share of the device's bandwidth that a step of `decode` reaches."""
    return moved(bill) / decode.seconds / device.bandwidth


def tokens_per_second(bill: Bill, measured: AgainstBound) -> float:
    """Return the tokens per second of the measured phase."""
    return (bill.setting.context if measured.path == "prefill" else 1) / measured.seconds
