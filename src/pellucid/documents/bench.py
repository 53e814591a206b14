"""What `pellucid bench` has measured of a model, as JSON: its phases beside their bounds, verdicts null where the machine was busy."""

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
    """The same as JSON; verdicts are null where the machine was not idle."""

    def told(x: AgainstBound) -> dict[str, Any]:
        return {"seconds": x.seconds, "bound": x.bound, "ratio": x.ratio if idle.quiet else None}

    s = bill.setting
    return {
        "model": bill.model,
        "family": bill.family,
        "setting": {"context": s.context, "dtype": s.weights, "random_weights": random},
        "idle": {"quiet": idle.quiet, "others": idle.others, "steadiness": idle.steadiness},
        "phases": {
            timed.phase: told(whole)
            | {
                "error": whole.error if idle.quiet else None,
                "tokens_per_second": tokens_per_second(bill, whole),
                "runs": len(timed.full),
                "planned": timed.planned,
                "outside": timed.outside,
                "share": bandwidth_share(bill, whole, device) if timed.phase == "decode" and idle.quiet else None,
                "eager": statistics.median(timed.eager),
                "parts": [{"path": p.path, "layers": p.layers, **told(p), "sets": p.sets} for p in parts],
            }
            for timed, whole, parts in phases
        },
        **engine_document(served),
    }


def engine_document(served: Served) -> dict[str, Any]:
    """The same of the engine; what was not asked for is null."""
    first, crowd, other = served.first, served.batch, served.against
    return {
        "first_token": None if first is None else asdict(first),
        "crowd": None if crowd is None else {**asdict(crowd), "tokens_per_second": crowd.rate},
        "against": None
        if other is None
        else {
            "peer": other.peer,
            "version": other.version,
            "new": other.new,
            "pairs": [
                {side: {"seconds": whole, "after_first": after} for side, (whole, after) in zip(("ours", "theirs"), pair, strict=True)}
                for pair in zip(other.ours, other.theirs, strict=True)
            ],
            "ratio": other.ratio(1),
            "ratio_with_prompt": other.ratio(0),
        },
    }


def bandwidth_share(bill: Bill, whole: AgainstBound, device: Device) -> float:
    """The bytes of a step over its time, as a part of what the memory gives."""
    return moved(bill) / whole.seconds / device.bandwidth


def tokens_per_second(bill: Bill, whole: AgainstBound) -> float:
    """Tokens a second."""
    return (bill.setting.context if whole.path == "prefill" else 1) / whole.seconds
