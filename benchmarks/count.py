"""How far the bounds of `pellucid count` are from what this machine takes, for GPT-2's and Qwen2.5-0.5B's shapes.

    python benchmarks/count.py [--model gpt2-small qwen2.5-0.5b] [--dtype float32 bfloat16] [--prefill 64 256 512] [--decode 64 512]
                               [--new 64] [--threads 2] [--out FILE]

Random weights. The bound, from limits that are measured before and after each model, is taken as a prediction of the time: its error is
bound / measured - 1. No measured time may lie below its bound. Writes benchmarks/results/count.json.
"""

import argparse
import json
import os
import platform
import statistics
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from meta import commit

from pellucid import __version__
from pellucid.api.count import count
from pellucid.bench import last_measured
from pellucid.bench.benched_model import random_weights
from pellucid.bench.machine_limits import Gauge, block_for, threaded
from pellucid.bench.timing import AgainstBound, against_bounds, decode, prefill
from pellucid.counting.bounds import moved
from pellucid.documents.amount import seconds

HERE = Path(__file__).parent
GOALS = {"decode": 0.20, "prefill": 0.30}  # the median of the errors' sizes


def to_json(x: AgainstBound) -> dict[str, Any]:
    return {"seconds": x.seconds, "bound": x.bound, "ratio": x.ratio, "error": x.error, "below": x.seconds < x.bound}


def cases(name: str, dtype: str, a: argparse.Namespace) -> list[dict[str, Any]]:
    """One model in one dtype, at every context."""
    bills = {n: count(name, n, dtype=dtype) for n in {*a.prefill, *a.decode}}
    model = random_weights(name, next(iter(bills.values())).config, getattr(torch, dtype))
    gauge = Gauge(a.threads, block_for(moved(bills[min(bills)]))).measure()
    with threaded(a.threads):
        times = [(n, prefill(model, bills[n])) for n in a.prefill] + [(n, decode(model, bills[n], a.new)) for n in a.decode]
    limits = gauge.measure().limits
    found = []
    for context, timed in times:
        whole, parts = against_bounds(bills[context], timed, limits.device)
        found.append({
            "model": name, "dtype": dtype, "phase": timed.phase, "context": context, **to_json(whole), "planned": timed.planned,
            "runs": timed.full, "eager": statistics.median(timed.eager),
            "parts": {p.path: to_json(p) for p in parts}, "limits": last_measured.document(limits),
        })  # fmt: skip
        print(name, dtype, timed.phase, context, seconds(whole.seconds), "bound", seconds(whole.bound), f"{whole.error:+.1%}", flush=True)
    return found


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """By phase: the median of the errors' sizes beside the goal, and which times lie below their bounds."""
    out: dict[str, Any] = {}
    for phase, goal in GOALS.items():
        some = [c for c in found if c["phase"] == phase]
        if some:
            error = statistics.median(abs(c["error"]) for c in some)
            out[phase] = {
                "median_error": error,
                "worst_error": max(abs(c["error"]) for c in some),
                "goal": goal,
                "reached": error <= goal,
                "below": [f"{c['model']} {c['dtype']} {c['context']}" for c in some if c["below"]],
                "parts_below": [f"{c['model']} {c['dtype']} {c['context']} {p}" for c in some for p, x in c["parts"].items() if x["below"]],
            }
    return out


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--model", nargs="+", default=["gpt2-small", "qwen2.5-0.5b"])
    ask.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    ask.add_argument("--prefill", nargs="+", type=int, default=[64, 256, 512])
    ask.add_argument("--decode", nargs="+", type=int, default=[64, 512])
    ask.add_argument("--new", type=int, default=64)
    ask.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    ask.add_argument("--out", type=Path, default=HERE / "results" / "count.json")
    a = ask.parse_args()
    load = os.getloadavg()[0]
    found = [case for name in a.model for dtype in a.dtype for case in cases(name, dtype, a)]
    report = {
        "schema": 1,
        "benchmark": "count",
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "versions": {"pellucid": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "machine": {"cores": os.cpu_count(), "threads": a.threads, "load_before": load},
        "summary": summary(found),
        "cases": found,
    }
    a.out.parent.mkdir(parents=True, exist_ok=True)
    a.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report["summary"], indent=1))


if __name__ == "__main__":
    main()
