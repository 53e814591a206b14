"""What `pellucid bench` has measured, as lines of a terminal and as JSON: the machine's limits, a model's phases beside their bounds."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from pellucid.counting import Bill
from pellucid.draw.amount import scaled, seconds
from pellucid.draw.number import count
from pellucid.draw.table import Cell, Column, clipped, prose, table
from pellucid.measuring.limits import Limits
from pellucid.measuring.timing import Beside, Timed
from pellucid.words import say

PHASES = {"prefill": "bench.prefill", "decode": "bench.decode"}
SETS = {"compute": "count.compute", "bandwidth": "count.bandwidth", None: "bench.nothing"}
Phases = Sequence[tuple[Timed, Beside, list[Beside]]]


def limits(found: Limits) -> list[Text]:
    """The machine, and each rate with the best and the median of its runs."""
    rows: list[list[Cell]] = [["", say("bench.best"), say("bench.median")]]
    for threads, rate in found.read.items():
        rows.append(
            [say("bench.read", size=scaled(found.block, "B"), threads=threads), scaled(rate.best, "B/s"), scaled(rate.median, "B/s")]
        )
    for dtype, rate in found.product.items():
        name = say("bench.product", dtype=dtype, threads=found.threads)
        rows.append([name, scaled(rate.best, "FLOP/s"), scaled(rate.median, "FLOP/s")])
    title = Text.assemble((found.cpu, "bold"), (f"  torch {found.torch} · {found.kernels or '-'} · {found.date}", "dim"))
    return [title, *table(rows, [Column(), Column(">"), Column(">", style="dim")])]


def kept(file: Path) -> list[Text]:
    return [Text(" " + say("bench.kept", file=file), "dim")]


def drawn(bill: Bill, random: bool, phases: Phases, width: int) -> list[Text]:
    """A model's phases, part by part."""
    s = bill.setting
    told = say("count.setting", context=count(s.context), batch=count(s.batch), dtype=s.weights)
    about = f"  {bill.family} · {say('explain.layers', count=len(bill.config.layers))} · {told}"
    out = [Text(), Text.assemble((bill.model, "bold"), (about + (f" · {say('bench.random')}" if random else ""), "dim"))]
    for timed, whole, parts in phases:
        line = say(PHASES[timed.phase], seconds=seconds(whole.seconds), bound=seconds(whole.bound), rate=f"{rate(bill, whole):.1f}")
        out += [Text(), Text(" " + line), Text(" " + say("bench.prediction", error=f"{100 * whole.error:+.0f}"))]
        rows: list[list[Cell]] = [["", "", say("bench.measured"), say("bench.bound"), say("bench.ratio"), ""]]
        rows += [
            [p.path, f"×{p.layers}", seconds(p.seconds), seconds(p.bound) if p.bound else "-", ratio(p), say(SETS[p.sets])] for p in parts
        ]
        eager = statistics.median(timed.eager)
        rows.append([Text(say("bench.rest"), "dim"), "", seconds(max(0.0, eager - sum(p.seconds for p in parts))), "", "", ""])
        rows.append([say("bench.eager"), "", seconds(eager), seconds(whole.bound), ratio(Beside("", eager, whole.bound)), ""])
        if timed.planned:
            rows.append([say("bench.planned"), "", seconds(whole.seconds), seconds(whole.bound), ratio(whole), ""])
        columns = [Column(), Column(">", style="dim"), Column(">"), Column(">"), Column(">"), Column(style="dim")]
        out += table(rows, columns, indent=2)
    return clipped([*out, Text(), *prose(say("bench.how"), width, "dim")], width)


def rate(bill: Bill, whole: Beside) -> float:
    """Tokens a second."""
    return (bill.setting.context if whole.path == "prefill" else 1) / whole.seconds


def ratio(x: Beside) -> str:
    return "-" if x.ratio is None else f"{x.ratio:.2f}"


def document(bill: Bill, random: bool, phases: Phases) -> dict[str, Any]:
    """The same as JSON."""

    def told(x: Beside) -> dict[str, Any]:
        return {"seconds": x.seconds, "bound": x.bound, "ratio": x.ratio}

    s = bill.setting
    return {
        "model": bill.model,
        "family": bill.family,
        "setting": {"context": s.context, "dtype": s.weights, "random_weights": random},
        "phases": {
            timed.phase: told(whole)
            | {
                "error": whole.error,
                "tokens_per_second": rate(bill, whole),
                "runs": len(timed.whole),
                "planned": timed.planned,
                "eager": statistics.median(timed.eager),
                "parts": [{"path": p.path, "layers": p.layers, **told(p), "sets": p.sets} for p in parts],
            }
            for timed, whole, parts in phases
        },
    }
