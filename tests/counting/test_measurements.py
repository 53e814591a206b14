"""No published measurement is faster than the bound that `count` gives for its machine, and each says what share of it was reached.

The figures are those of vendors and projects, in published_measurements.json with their sources. A time is bounded from below: a prompt's
part, then as many steps as tokens were written, at their mean context: a step's time is the largest of straight lines in the context, so
it is on average no less than there.
"""

import json
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from pellucid import catalog
from pellucid.api.count import described
from pellucid.counting import Setting, counted
from pellucid.counting.bill import Bill
from pellucid.counting.bounds import Device
from pellucid.counting.ranks import Split, pace

PUBLISHED: dict[str, Any] = json.loads((Path(__file__).parent / "published_measurements.json").read_text())
THROUGHPUT = PUBLISHED["tensorrt"]["throughput"]  # model, device, dtype, requests, ranks, tokens read, tokens written, tokens a second
FIRST = PUBLISHED["tensorrt"]["first"]  # model, device, dtype, ranks, tokens read, milliseconds to the first token, rounded
ALONE = PUBLISHED["gpt-fast"]["alone"]  # model, device, dtype, ranks, tokens a second of one request behind 5 tokens


@cache
def bill(model: str, dtype: str, context: int, batch: int) -> Bill:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        family, cfg = described(model)
    cache = "fp8" if dtype == "fp8" else "bfloat16"
    return counted(cfg, model, family, Setting(context, batch, None, dtype, cache, "bfloat16"))


def shares(faster: float = 1.0) -> dict[str, float]:
    """Return the share of the bound that each measurement reached. faster: how much faster a device is than the catalogue says."""

    def seconds(model: str, device: str, dtype: str, ranks: int, context: int, batch: int, phase: str) -> float:
        there = Device.of(catalog.devices()[device])
        return pace(bill(model, dtype, context, batch), Split(tp=ranks), phase, there).seconds / faster

    reached = dict[str, float]()
    for model, device, dtype, batch, ranks, read, written, rate in THROUGHPUT:
        least = seconds(model, device, dtype, ranks, read, batch, "prefill")
        least += (written - 1) * seconds(model, device, dtype, ranks, read + written // 2, batch, "decode")
        reached[f"{model} {device} {dtype} x{ranks} {batch}·{read}+{written}"] = rate * least / (batch * written)
    for model, device, dtype, ranks, read, took in FIRST:
        least = seconds(model, device, dtype, ranks, read, 1, "prefill")
        reached[f"{model} {device} {dtype} x{ranks} first of {read}"] = least / ((took + 0.5) / 1e3)
    for model, device, dtype, ranks, rate in ALONE:
        reached[f"{model} {device} {dtype} x{ranks} alone"] = rate * seconds(model, device, dtype, ranks, 5, 1, "decode")
    return reached


def span(values: list[float]) -> str:
    return f"{min(values):.0%} to {max(values):.0%}"


def test_no_published_measurement_beats_the_bound() -> None:
    reached = shares()
    assert len(reached) == len(THROUGHPUT) + len(FIRST) + len(ALONE) > 40
    assert {name: share for name, share in reached.items() if not 0.05 < share <= 1.0} == {}
    assert all(group["source"].startswith("https://") for group in PUBLISHED.values())
    many = [share for name, share in reached.items() if " x1 " in name and "+" in name]
    eight = [share for name, share in reached.items() if " x8 " in name]
    alone = reached["llama-2-7b a100 bfloat16 x1 alone"]
    page = (Path(__file__).parents[2] / "docs" / "count.md").read_text(encoding="utf-8")
    assert f"{len(reached)} published measurements reach {span([*reached.values()])} of the bound" in page
    assert f"bf16 on one card reaches {alone:.0%}, many on one card {span(many)}, eight cards {span(eight)}." in page


def test_a_bound_that_is_too_slow_is_seen() -> None:
    """With devices of half their bandwidth and peak some measurement would beat it."""
    assert max(shares(0.5).values()) > 1.0
