"""The verdict of a bill, its first lines: whether the model fits, for how many requests, how fast, and what sets the pace."""

from typing import Any

from rich.text import Text

from pellucid.counting import Bill
from pellucid.documents.amount import Amount, scaled
from pellucid.documents.count import Scenario, bounds, device_of, over
from pellucid.documents.number import count
from pellucid.messages import say
from pellucid.terminal.bounds import SETS, set_by
from pellucid.terminal.table import prose
from pellucid.terminal.training_and_ranks import any_of, phase_of


def verdict(bill: Bill, view: Scenario, width: int) -> list[Text]:
    """Write the verdict. Empty without a device. The numbers are those of the blocks of bounds below it."""
    device = device_of(bill)
    if device is None:
        return []
    on = device.name
    if view.split is None or view.alone:
        report = bounds(bill, view.hour)
        used = report["weights"] + report["cache"]
    else:
        report = over(bill, view.split, view.hour)["bounds"]
        used, on = report["held"], say("count.verdict.ranks", ranks=view.split.ranks, device=on)
    sizes = {"device": on, "held": scaled(used, "B"), "memory": scaled(int(device.memory), "B")}
    if not report["fits"]:
        line = say("count.verdict.large", **sizes)
        return prose(
            line if "devices" not in report else f"{line} · {say('count.verdict.devices', devices=report['devices'])}", width, "bold red"
        )
    parts = [say("count.verdict.fits", **sizes)]
    if report.get("largest_batch", 0) != 0:
        parts.append(say("count.verdict.users", users=any_of(report["largest_batch"]), context=count(bill.setting.context)))
    parts.append(pace(report))
    return prose(" · ".join(parts), width, "bold green")


def pace(report: dict[str, Any]) -> str:
    """Return the bound of the phase that a user waits for, a decode step or an encoder's forward, with what sets most of it."""
    phase = "decode" if "decode" in report else "prefill"
    best = report[phase]
    by = {name: sum(p["seconds"] for p in best["parts"] if p["sets"] == name) for name in SETS}
    sets = set_by(max(by, key=lambda name: by[name]))
    rate, least = f"{best['tokens_per_second']:.4g}", Amount(best["seconds"], "s")
    return say("count.verdict.pace", phase=phase_of(phase), rate=rate, seconds=least, sets=sets)
