"""The formulas of a bill's numbers, by their paths in its JSON: of models and their parts, of what a device needs at best, of ranks."""

from typing import Any

from pellucid.counting import Bill, fit
from pellucid.counting.bounds import Device, parts
from pellucid.counting.distinct import PLACE
from pellucid.counting.fit import bytes_held, devices, price, seconds, tokens
from pellucid.counting.number import Number, figure, total
from pellucid.counting.ranks import Split, largest_batch, longest_context, most_held, pace, ranks
from pellucid.counting.speculation import SHARES, Drafted
from pellucid.documents.count import Scenario, device_of, document
from pellucid.engine.proposals import MOST

PHASES = ("prefill", "decode")


def count_document(bill: Bill, scenario: Scenario = Scenario()) -> dict[str, Any]:  # noqa: B008
    """Return the bill as `pellucid count --json` prints it, with the formulas of its numbers."""
    return document(bill, scenario) | {"formulas": formulas(bill, scenario)}


def formulas(bill: Bill, scenario: Scenario = Scenario()) -> dict[str, str]:  # noqa: B008
    """Return each formula as symbols, numbers and value: "active − embed = 37,552,282,624 − 926,679,040 = 36,625,603,584"."""
    device = device_of(bill)
    out = {path: n.formula for path, n in bill.numbers.items() if not any(PLACE.fullmatch(rest) for rest in tails(path))}
    if device is not None and scenario.alone:
        out |= {f"bounds.{name}": text for name, text in bounds(bill, device, scenario.hour).items()}
    if scenario.split is not None:
        out |= {f"ranks.{name}": text for name, text in over(bill, scenario.split, device, scenario.hour).items()}
    if scenario.draft is not None:
        out |= {f"draft.{name}": text for name, text in drafted(Drafted(bill, scenario.draft, MOST), scenario.accepted).items()}
    return out


def drafted(both: Drafted, accepted: float | None) -> dict[str, str]:
    """Return the formulas of a model with its draft: of the memory, and of each accepted share."""
    device, out = device_of(both.model), {"held": both.memory.formula}
    for i, share in enumerate(SHARES if accepted is None else [accepted]):
        best = both.best(share, device)
        out[f"rows.{i}.tokens_a_step"] = best.tokens.formula
        if device is not None:
            rates = {"seconds": best.seconds(device), "tokens_per_second": best.rate(device), "over_plain": best.over_plain(device)}
            out |= {f"rows.{i}.{name}": n.formula for name, n in rates.items()}
    return out


def tails(path: str) -> list[str]:
    """Return the tails of a path: of "a.b.c" itself, "b.c" and "c"."""
    words = path.split(".")
    return [".".join(words[i:]) for i in range(len(words))]


def bounds(bill: Bill, device: Device, hour: float | None) -> dict[str, str]:
    """Return the formulas of what fits, and of each phase's seconds: per part the longer of products at peak and bytes at bandwidth."""
    s, weights, memory = bill.setting, int(bill["bytes.total"]), int(device.memory)
    cache = bytes_held(bill, s.context, s.batch) - weights
    need = devices(bill, device)
    out = {"devices": f"⌈(weights + cache) / memory⌉ = ⌈({weights:,} + {cache:,}) / {memory:,}⌉ = {need:,}"}
    out["fits"] = fitting(weights, cache, memory)
    if "cache.bytes" in bill:
        n, longest = fit.largest_batch(bill, device), fit.longest_context(bill, device)
        if n is not None:
            out["largest_batch"] = f"⌊(memory − weights) / (cache / B)⌋ = ⌊({memory:,} − {weights:,}) / ({cache:,} / {s.batch:,})⌋ → {n:,}"
        if longest is not None:
            over = bytes_held(bill, longest + 1, s.batch)
            out["longest_context"] = f"weights + cache(S = {longest + 1:,}) = {over:,} > memory = {memory:,} → {longest:,}"
    for phase in PHASES:
        if f"flops.{phase}" in bill:
            summed = total((p.path, 1, Number(p.seconds)) for p in parts(bill, phase, device))
            out[f"{phase}.seconds"] = f"Σ max(FLOP / peak, bytes / bandwidth) = {summed.formula} s"
            best, count = seconds(bill, phase, device), tokens(bill, phase)
            out[f"{phase}.tokens_per_second"] = f"tokens / seconds = {count:,} / {figure(best)} = {figure(count / best)}"
            if hour is not None:
                put = f"{best:.4g} / 3,600 · {hour:g} / {count:,} · 1,000,000"
                cost = price(bill, phase, device, hour)
                out[f"{phase}.price_of_a_million_tokens"] = f"seconds / 3,600 · price / tokens · 10⁶ = {put} = {cost:.4g}"
    return out


def fitting(weights: int, cache: int, memory: int) -> str:
    """Compare weights and cache with a device's memory, in symbols and numbers."""
    sign = "≤" if weights + cache <= memory else ">"
    return f"weights + cache = {weights:,} + {cache:,} = {weights + cache:,} {sign} memory = {memory:,}"


def over(bill: Bill, split: Split, device: Device | None, hour: float | None) -> dict[str, str]:
    """Return the formulas of each stage's memory; with a device, those of the ranks' best times and price."""
    name = "ep" if split.experts == 1 else "experts"
    out = {"ranks": f"pp·max(tp, {name}) = {split.pp}·max({split.tp}, {split.holders}) = {split.ranks}"}
    every = ranks(bill, split)
    for i, rank in enumerate(every):
        out |= {f"stages.{i}.{name}": getattr(rank, name)().formula for name in ("parameters", "weights", "cache")}
    if device is None:
        return out
    sizes = [(int(rank.weights()), int(rank.cache())) for rank in every]
    weights, cache = max(sizes, key=sum)
    memory = int(device.memory)
    out["bounds.fits"], out["bounds.held"] = (
        fitting(weights, cache, memory),
        f"weights + cache = {weights:,} + {cache:,} = {weights + cache:,}",
    )
    if "cache.bytes" in bill:
        s = bill.setting
        for name, symbol, of in (("largest_batch", "B", largest_batch), ("longest_context", "S", longest_context)):
            if (most := of(bill, split, device)) is not None:
                how = (s.context, most + 1) if symbol == "B" else (most + 1, s.batch)
                more = f"{most_held(bill, split, *how):,}"
                out[f"bounds.{name}"] = f"weights + cache({symbol} = {most + 1:,}) = {more} > memory = {memory:,} → {symbol} = {most:,}"
    for phase in PHASES:
        if f"flops.{phase}" not in bill:
            continue
        best, count = pace(bill, split, phase, device), tokens(bill, phase)
        summed = total((p.path, 1, Number(p.seconds)) for p in parts(bill, phase, device, every[0]))
        if len(every) > 1:
            summed = total((f"stage {i + 1}", 1, Number(s)) for i, s in enumerate(best.stages))
        name = f"bounds.{phase}"
        out[f"{name}.seconds"] = f"Σ max(FLOP / peak, bytes / bandwidth) = {summed.formula} s"
        put = f"{count:,} / {figure(max(best.stages))}"
        out[f"{name}.tokens_per_second"] = f"tokens / slowest stage = {put} = {figure(best.rate)}"
        if hour is not None:
            put, cost = f"{split.ranks} · {hour:g} / 3,600 / {figure(best.rate)} · 1,000,000", figure(best.price(split.ranks, hour))
            out[f"{name}.price_of_a_million_tokens"] = f"devices · price / 3,600 / rate · 10⁶ = {put} = {cost}"
    return out
