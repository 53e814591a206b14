"""The measurements of `pellucid bench` as lines of a terminal: the machine's limits, a model's phases beside their bounds."""

import statistics
from pathlib import Path

from rich.text import Text

from pellucid.bench.idle import Idle
from pellucid.bench.machine_limits import MachineLimits
from pellucid.bench.peers import Served
from pellucid.bench.timing import AgainstBound
from pellucid.counting import Bill
from pellucid.counting.bounds import Device
from pellucid.documents.amount import figures, scaled, seconds
from pellucid.documents.bench import Phases, bandwidth_share, tokens_per_second
from pellucid.documents.number import count
from pellucid.messages import say
from pellucid.terminal.bounds import headed
from pellucid.terminal.table import Column, clipped, prose, table, titled

PHASES = {"prefill": "bench.prefill", "decode": "bench.decode"}
SETS = {"compute": "count.compute", "bandwidth": "count.bandwidth", None: "bench.nothing"}


def limits(machine: MachineLimits) -> list[Text]:
    """Write the machine, and each rate with the best and the median of its runs."""
    rows = headed(say("bench.rate"), say("bench.best"), say("bench.median"))
    for threads, rate in machine.read.items():
        rows.append(
            [say("bench.read", size=scaled(machine.block, "B"), threads=threads), scaled(rate.best, "B/s"), scaled(rate.median, "B/s")]
        )
    for dtype, rate in machine.product.items():
        name = say("bench.product", dtype=dtype, threads=machine.threads)
        rows.append([name, scaled(rate.best, "FLOP/s"), scaled(rate.median, "FLOP/s")])
    title = Text.assemble((machine.cpu, "bold"), (f"  torch {machine.torch} · {machine.kernels or '-'} · {machine.date}", "dim"))
    return [title, *table(rows, [Column(), Column(">"), Column(">", style="dim")])]


def kept(file: Path) -> list[Text]:
    """Write the file that keeps the limits."""
    return [Text(" " + say("bench.kept", file=file), "dim")]


def drawn(bill: Bill, random: bool, phases: Phases, device: Device, served: Served, idle: Idle, width: int) -> list[Text]:
    """Write a model's phases, part by part. If the machine was not idle, times without a comparison with the bounds."""
    s = bill.setting
    setting = say("count.setting", context=count(s.context), batch=count(s.batch), dtype=s.weights)
    about = f"{bill.family} · {say('explain.layers', count=len(bill.config.layers))} · {setting}"
    out = [Text(), *titled(bill.model, about + (f" · {say('bench.random')}" if random else ""), width)]
    out += [] if idle.quiet else [Text(), *prose(disturbed(idle), width, "yellow")]
    for timed, total, parts in phases:
        line = say(
            PHASES[timed.phase], seconds=seconds(total.seconds), bound=seconds(total.bound), rate=figures(tokens_per_second(bill, total))
        )
        out += [Text(), Text(" " + line)]
        out += [Text(" " + say("bench.prediction", error=f"{100 * total.error:+.0f}"))] if idle.quiet else []
        if timed.phase == "decode" and idle.quiet:
            out.append(Text(" " + say("bench.share", share=f"{100 * bandwidth_share(bill, total, device):.0f}")))
        if timed.outside is not None:
            out.append(Text(" " + say("bench.outside", seconds=seconds(max(0.0, timed.outside)))))
        measured, bound = say("bench.measured"), say("bench.bound")
        rows = headed(say("count.head.part"), say("count.head.layers"), measured, bound, say("bench.ratio"), say("count.head.sets"))
        rows += [
            [p.path, f"×{p.layers}", seconds(p.seconds), seconds(p.bound) if p.bound else "-", ratio(p, idle), say(SETS[p.sets])]
            for p in parts
        ]
        eager = statistics.median(timed.eager)
        rows.append([Text(say("bench.rest"), "dim"), "", seconds(max(0.0, eager - sum(p.seconds for p in parts))), "", "", ""])
        rows.append([say("bench.eager"), "", seconds(eager), seconds(total.bound), ratio(AgainstBound("", eager, total.bound), idle), ""])
        if timed.planned:
            rows.append([say("bench.planned"), "", seconds(total.seconds), seconds(total.bound), ratio(total, idle), ""])
        columns = [Column(), Column(">", style="dim"), Column(">"), Column(">"), Column(">"), Column(style="dim")]
        out += table(rows, columns, indent=2)
    out += [Text(), *(Text(" " + line) for line in engine(served))]
    return clipped([*out, Text(), *prose(say("bench.how", source=device.source), width, "dim")], width)


def disturbed(idle: Idle) -> str:
    """Write the reason why times are not compared: other processes' load and the steadiness of the runs."""
    others = "-" if idle.others is None else f"{100 * idle.others:.0f}%"
    return say("bench.disturbed", others=others, steadiness=f"{100 * idle.steadiness:.0f}%")


def engine(served: Served) -> list[str]:
    """Write a line each for the first token, a batch of requests, and another library beside Pellucid."""
    out = list[str]()
    if (first := served.first) is not None:
        cold, warm = (seconds(statistics.median(times)) for times in (first.cold, first.warm))
        first_token = {"context": count(first.context), "cold": cold}
        known = say("bench.first", **first_token, warm=warm, cached=count(first.cached))
        out.append(known if first.cached else say("bench.first.cold", **first_token))
    if (batch := served.batch) is not None:
        size = {"requests": batch.requests, "read": count(batch.read), "written": count(batch.written)}
        out.append(say("bench.crowd", **size, seconds=seconds(batch.seconds), rate=f"{batch.rate:.1f}"))
    if (other := served.against) is not None:
        ours, theirs, ratios = other.rate(other.ours), other.rate(other.theirs), {"ratio": other.ratio(1), "whole": other.ratio(0)}
        numbers = {"ours": f"{ours:.1f}", "theirs": f"{theirs:.1f}", **{name: f"{value:.2f}" for name, value in ratios.items()}}
        out.append(say("bench.against", peer=other.peer, version=other.version, pairs=len(other.ours), **numbers))
    return out


def ratio(x: AgainstBound, idle: Idle) -> str:
    """Write the ratio of a time to its bound, "-" without one or if the machine was not idle."""
    return "-" if x.ratio is None or not idle.quiet else f"{x.ratio:.2f}"
