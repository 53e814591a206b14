"""The verdict of a bill, its first lines: whether the model fits, for how many requests, how fast, and what sets the pace."""

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from pellucid.counting import Bill
from pellucid.documents.amount import Amount, figures, scaled
from pellucid.documents.count import Scenario, device_of, way_over
from pellucid.documents.number import count
from pellucid.messages import say
from pellucid.terminal.bounds import SETS, set_by
from pellucid.terminal.table import prose
from pellucid.terminal.training_and_ranks import any_of, phase_of


def verdict(bill: Bill, view: Scenario, report: Mapping[str, Any], width: int) -> list[Text]:
    """Write the verdict. report: the bounds on the device, or on its ranks, which the blocks below it write; empty without a device."""
    device = device_of(bill)
    if device is None or not report:
        return []
    on, used = device.name, report["held"] if "held" in report else report["weights"] + report["cache"]
    if view.split is not None and not view.alone:
        on = say("count.verdict.ranks", ranks=view.split.ranks, device=on)
    sizes = {"device": on, "held": scaled(used, "B"), "memory": scaled(int(device.memory), "B")}
    if not report["fits"]:
        parts = [say("count.verdict.large", **sizes)]
        parts += [say("count.verdict.devices", devices=report["devices"])] if "devices" in report else []
        return prose(" · ".join(parts), width, "bold red")
    parts = [say("count.verdict.fits", **sizes)]
    if report.get("largest_batch", 0) != 0:
        parts.append(say("count.verdict.users", users=any_of(report["largest_batch"]), context=count(bill.setting.context)))
    parts.append(pace(report))
    return prose(" · ".join(parts), width, "bold green")


def training_verdict(bill: Bill, view: Scenario, report: Mapping[str, Any], width: int) -> list[Text]:
    """Write the verdict on a step of training. report: its bounds, empty without one or without a device."""
    if not report:
        return []
    way, on = way_over(bill, view), report["device"]
    ranks = 1 if way is None else way.shards * way.split.ranks
    if ranks > 1:
        on = say("count.verdict.ranks", ranks=ranks, device=on)
    fits = report["fits"]
    out = say(
        "count.verdict.step" if fits else "count.verdict.step_large",
        device=on,
        held=scaled(report["held"], "B"),
        memory=scaled(report["memory"], "B"),
        seconds=Amount(report["seconds"], "s"),
        rate=figures(report["tokens_per_second"]),
        sets=set_by(report["sets"]),
    )
    return prose(out, width, "bold green" if fits else "bold red")


def pace(report: Mapping[str, Any]) -> str:
    """Return the bound of the phase that a user waits for, a decode step or an encoder's forward, with what sets most of it."""
    phase = "decode" if "decode" in report else "prefill"
    best = report[phase]
    by = {name: sum(p["seconds"] for p in best["parts"] if p["sets"] == name) for name in SETS}
    sets = set_by(max(by, key=lambda name: by[name]))
    rate, least = figures(best["tokens_per_second"]), Amount(best["seconds"], "s")
    return say("count.verdict.pace", phase=phase_of(phase), rate=rate, seconds=least, sets=sets)
