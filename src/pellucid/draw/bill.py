"""A bill as lines of a terminal and as JSON: parameters by part, the cache, products, and the bounds on a device."""

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from pellucid import catalog
from pellucid.counting import Bill
from pellucid.counting.bill import BYTES
from pellucid.counting.bounds import Device, parts
from pellucid.draw.number import count
from pellucid.draw.table import Cell, Column, clipped, table
from pellucid.words import say

SCHEMA = 1
UNITS = ("", "K", "M", "G", "T", "P", "E")


def scaled(x: float, unit: str = "", base: int = 1000) -> str:
    """A large number in four figures with its unit: 70.27 KB."""
    place = 0
    while abs(x) >= base and place < len(UNITS) - 1:
        x, place = x / base, place + 1
    return f"{x:.4g} {UNITS[place]}{unit}".rstrip()


def seconds(x: float) -> str:
    """1.2 ms, 340 µs."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if x >= size:
            return f"{x / size:.3g} {unit}"
    return f"{x / 1e-9:.3g} ns"


def device_of(bill: Bill) -> Device | None:
    """The device that a bill is for."""
    found = catalog.find(catalog.devices(), bill.setting.device) if bill.setting.device else None
    return None if found is None else Device.of(found)


def bounds(bill: Bill) -> dict[str, Any]:
    """Seconds at best, and what fits, on the bill's device."""
    device = device_of(bill)
    if device is None:
        return {}
    held = int(bill["parameters.total"]) * BYTES[bill.setting.weights]
    cache = float(bill["cache.bytes"]) if "cache.bytes" in bill else 0.0
    told: dict[str, Any] = {"device": device.name, "memory": int(device.memory), "weights": int(held), "cache": int(cache)}
    told["fits"] = held + cache <= device.memory
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
    return told


def document(bill: Bill) -> dict[str, Any]:
    """The bill as JSON."""
    s = bill.setting
    whole = {k: int(n) for k, n in bill.numbers.items() if k.startswith(("flops", "elements")) and k.count(".") == 1}
    cache = {k.removeprefix("cache."): int(n) for k, n in bill.within("cache") if "layers" not in k} if "cache.bytes" in bill else {}
    return {
        "schema": SCHEMA,
        "model": bill.model,
        "family": bill.family,
        "setting": {"context": s.context, "batch": s.batch, "source": s.source, "weights": s.weights, "cache": s.cache, "device": s.device},
        "parameters": {
            "total": int(bill["parameters.total"]),
            "active": int(bill["parameters.active"]),
            "active_without_input": int(bill["parameters.active_without_input"]),
            "buffers": int(bill["buffers.total"]),
            "by_part": {k.rpartition(".")[2]: int(n) for k, n in bill.within("parameters.by_part")},
        },
        "cache": {k.removeprefix("cache."): v for k, v in cache.items()},
        "flops": {k.removeprefix("flops."): v for k, v in whole.items() if k.startswith("flops")},
        "elements": {k.removeprefix("elements."): v for k, v in whole.items() if k.startswith("elements")},
        "bounds": bounds(bill),
    }


def drawn(bill: Bill, width: int) -> list[Text]:
    """The lines of `count` for one model."""
    return clipped([*head(bill), Text(), *parameters(bill), Text(), *work(bill), *limits(bill)], width)


def head(bill: Bill) -> Iterator[Text]:
    s = bill.setting
    told = say("count.setting", context=count(s.context), batch=count(s.batch), dtype=s.weights)
    yield Text.assemble((bill.model, "bold"), (f"  {bill.family} · {say('explain.layers', count=len(bill.config.layers))} · {told}", "dim"))


def parameters(bill: Bill) -> list[Text]:
    """By part, each with its share."""
    every = int(bill["parameters.total"])
    rows: list[list[Cell]] = [
        [name.rpartition(".")[2], count(int(n)), f"{100 * n.value / every:.1f}%", Text(short(n.symbols), "dim")]
        for name, n in bill.within("parameters.by_part")
    ]
    rows.append([Text(say("count.total"), "bold"), count(every), "", Text(bill["parameters.total"].symbols, "dim")])
    if bill["parameters.active"].value != every:
        rows.append([say("count.active"), count(int(bill["parameters.active"])), "", Text(bill["parameters.active"].symbols, "dim")])
        without = bill["parameters.active_without_input"]
        rows.append([say("count.active_without"), count(int(without)), "", Text(without.symbols, "dim")])
    if int(bill["buffers.total"]):
        rows.append([say("count.buffers"), count(int(bill["buffers.total"])), "", ""])
    size = int(bill["parameters.total"]) * BYTES[bill.setting.weights]
    rows.append([say("count.bytes", dtype=bill.setting.weights), scaled(size, "B"), "", ""])
    return [Text(say("count.parameters"), "bold"), *table(rows, [Column(), Column(">"), Column(">", style="dim"), Column()])]


def short(symbols: str, most: int = 60) -> str:
    """A sum's first summands."""
    return (
        symbols
        if len(symbols) <= most
        else f"{symbols[: symbols.rindex(' + ', 0, most)] if ' + ' in symbols[:most] else symbols[:most]} + …"
    )


def work(bill: Bill) -> list[Text]:
    """The cache, and the products of both phases."""
    out: list[Text] = []
    rows: list[list[Cell]] = []
    if "cache.bytes" in bill:
        n = bill["cache.bytes_per_token"]
        rows.append([say("count.token"), f"{count(int(n))} B", Text(f"{short(n.symbols)} = {n.filled}", "dim")])
        whole = bill["cache.bytes"]
        rows.append(
            [say("count.cache", context=count(bill.setting.context), batch=count(bill.setting.batch)), scaled(float(whole), "B"), ""]
        )
        if "cache.bytes_per_source_token" in bill:
            rows.append([say("count.source"), f"{count(int(bill['cache.bytes_per_source_token']))} B", ""])
        out += [Text(say("count.past"), "bold"), *table(rows, [Column(), Column(">"), Column()]), Text()]
    rows = []
    for phase in ("prefill", "decode"):
        if f"flops.{phase}" in bill:
            rows.append([say(f"count.{phase}"), scaled(float(bill[f"flops.{phase}"]), "FLOP"), Text(say("count.square"), "dim")])
            rows.append(["", scaled(float(bill[f"flops.{phase}_causal"]), "FLOP"), Text(say("count.causal"), "dim")])
            rows.append(["", scaled(float(bill[f"elements.{phase}"])), Text(say("count.elements"), "dim")])
    out += [Text(say("count.work"), "bold"), *table(rows, [Column(), Column(">"), Column()])]
    return out


def limits(bill: Bill) -> list[Text]:
    """The bounds on a device, part by part."""
    device = device_of(bill)
    if device is None:
        return []
    told = bounds(bill)
    fit = "count.fits" if told["fits"] else "count.too_large"
    sizes = {"weights": scaled(told["weights"], "B"), "cache": scaled(told["cache"], "B"), "memory": scaled(told["memory"], "B")}
    out = [Text(), Text(say("count.bounds", device=device.name), "bold"), Text(" " + say(fit, **sizes))]
    for phase in ("prefill", "decode"):
        if phase not in told:
            continue
        rows: list[list[Cell]] = [
            [p.path, f"×{p.times}", scaled(p.flops, "FLOP"), scaled(p.moved, "B"), f"{p.intensity:.3g}", seconds(p.seconds), say(f"count.{p.sets}")]
            for p in parts(bill, phase, device) if p.seconds
        ]  # fmt: skip
        title = say("count.phase", phase=say(f"count.{phase}"), seconds=seconds(told[phase]["seconds"]))
        columns = [Column(), Column(">", style="dim"), Column(">"), Column(">"), Column(">", style="dim"), Column(">"), Column(style="dim")]
        out += [Text(" " + title), *table(rows, columns, indent=2)]
    return out
