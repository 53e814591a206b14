"""The formulas of a bill's numbers, by their paths in its JSON: of whole models and their parts, and of what a device needs at best."""

from typing import Any

from pellucid.counting import Bill
from pellucid.counting.bounds import Device, parts
from pellucid.counting.distinct import PLACE
from pellucid.counting.fit import devices, held, largest_batch, longest_context
from pellucid.counting.number import Number, total
from pellucid.draw.bill_json import device_of, document


def count_document(bill: Bill) -> dict[str, Any]:
    """The bill as `pellucid count --json` prints it, with its numbers' formulas."""
    return document(bill) | {"formulas": formulas(bill)}


def formulas(bill: Bill) -> dict[str, str]:
    """Symbols, numbers put in, and the value: "active − embed = 37,552,282,624 − 926,679,040 = 36,625,603,584"."""
    device = device_of(bill)
    whole = {path: n.formula for path, n in bill.numbers.items() if not any(PLACE.fullmatch(rest) for rest in tails(path))}
    return whole | ({} if device is None else {f"bounds.{name}": text for name, text in bounds(bill, device).items()})


def tails(path: str) -> list[str]:
    """What follows each of its words."""
    words = path.split(".")
    return [".".join(words[i:]) for i in range(len(words))]


def bounds(bill: Bill, device: Device) -> dict[str, str]:
    """What fits, and the seconds of each phase: every part's products at the peak or its bytes at the bandwidth, whichever takes longer."""
    s, weights, memory = bill.setting, int(bill["bytes.total"]), int(device.memory)
    past = held(bill, s.context, s.batch) - weights
    need = devices(bill, device)
    out = {"devices": f"⌈(weights + cache) / memory⌉ = ⌈({weights:,} + {past:,}) / {memory:,}⌉ = {need:,}"}
    if "cache.bytes" in bill:
        n, longest = largest_batch(bill, device), longest_context(bill, device)
        if n is not None:
            out["largest_batch"] = f"⌊(memory − weights) / (cache / B)⌋ = ⌊({memory:,} − {weights:,}) / ({past:,} / {s.batch:,})⌋ → {n:,}"
        if longest is not None:
            over = held(bill, longest + 1, s.batch)
            out["longest_context"] = f"weights + cache(S = {longest + 1:,}) = {over:,} > memory = {memory:,} → {longest:,}"
    for phase in ("prefill", "decode"):
        if f"flops.{phase}" in bill:
            summed = total((p.path, 1, Number(p.seconds)) for p in parts(bill, phase, device))
            out[f"{phase}.seconds"] = f"Σ max(FLOP / peak, bytes / bandwidth) = {summed.formula} s"
    return out
