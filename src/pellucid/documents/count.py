"""A bill as JSON: what `pellucid count --json` prints for one model; for several, a list of these."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pellucid.bench import last_measured
from pellucid.counting import Bill, Number, ranks
from pellucid.counting.bill import BYTES
from pellucid.counting.bounds import Device, Part, moved, parts
from pellucid.counting.fit import bytes_held, devices, largest_batch, longest_context, price, tokens
from pellucid.counting.ranks import Split, pace, split_of, spread
from pellucid.counting.speculation import SHARES, Drafted
from pellucid.counting.textbook import closed_forms
from pellucid.counting.training_extra import at_least
from pellucid.counting.training_memory import Way, lasting_of, training
from pellucid.counting.training_pace import training_pace
from pellucid.counting.training_ranks import TrainingGrid, of_rank
from pellucid.counting.training_share import divides
from pellucid.counting.variants import kinds, other_kinds
from pellucid.engine.proposals import MOST
from pellucid.errors import UseError
from pellucid.messages import say

SCHEMA = 1
PHASES = ("prefill", "decode")
LARGEST = 2**20  # of a LoRA's rank, of shards


@dataclass(frozen=True)
class Scenario:
    """A use of the counted model. hour: the price of its device for an hour.  way: of training.  split: over ranks.

    draft: the bill of a model that guesses its next tokens.  accepted: the share of the guesses that are right, None for several.
    efficiency: the share of the bound that training reaches.
    """

    hour: float | None = None
    way: Way | None = None
    split: Split | None = None
    draft: Bill | None = None
    accepted: float | None = None
    efficiency: float = 1.0

    @property
    def alone(self) -> bool:
        """True if one device does all of it."""
        return self.split is None or self.split.ranks == 1


def scenario(
    device: str | None = None,
    price: float | None = None,
    train: bool = False,
    lora: int | None = None,
    recompute: bool = False,
    shards: int = 1,
    ranks: str | None = None,
    draft: Bill | None = None,
    accepted: float | None = None,
    efficiency: float | None = None,
) -> Scenario:
    """Return the scenario of these settings; a UseError for a wrong one. price: of the device for an hour.  ranks: "tp=8,pp=2,ep=8"."""
    if accepted is not None and (draft is None or not 0 <= accepted <= 1):
        raise UseError("count.accepted", found=accepted)
    if draft is not None and ranks is not None:
        raise UseError("count.draft.ranks")
    for name, n in (("--lora", lora), ("--shards", shards)):
        if n is not None and not 1 <= n <= LARGEST:
            raise UseError("count.number", name=name, found=n, most=LARGEST)
    if price is not None and not (device and 0 <= price < 1e9):
        raise UseError("count.price.device", found=price)
    way = Way(lora, recompute, shards) if train or lora or recompute or shards > 1 else None
    if efficiency is not None and not 0 < efficiency <= 1:
        raise UseError("count.offers.range", name="--efficiency", found=efficiency, most=1)
    return Scenario(price, way, None if ranks is None else split_of(ranks), draft, accepted, efficiency or 1.0)


def device_of(bill: Bill) -> Device | None:
    """Return the device of the bill's setting, None if it names none."""
    return last_measured.device(bill.setting.device, moved(bill)) if bill.setting.device else None


def document(bill: Bill, scenario: Scenario = Scenario()) -> dict[str, Any]:
    """Return the bill as JSON. Over ranks, bounds are those of all ranks together; a single device's are left out."""
    s, device = bill.setting, device_of(bill)
    totals = {k: int(n) for k, n in bill.numbers.items() if k.startswith(("flops", "elements")) and k.count(".") == 1}
    out: dict[str, Any] = {
        "schema": SCHEMA,
        "model": bill.model,
        "family": bill.family,
        "attention": kinds(bill.config),
        "layers": len(bill.config.layers) + len(bill.config.encoder or ()),
        "setting": {"context": s.context, "batch": s.batch, "source": s.source, "weights": s.weights, "cache": s.cache, "device": s.device}
        | ({} if s.kv is None else {"kv": s.kv}),
        "parameters": {
            "total": int(bill["parameters.total"]),
            "active": int(bill["parameters.active"]),
            "active_without_input": int(bill["parameters.active_without_input"]),
            "buffers": int(bill["buffers.total"]),
            "by_part": {k: int(n) for k, n in bill.below("parameters.by_part")},
        },
        "bytes": {"total": int(bill["bytes.total"]), "by_part": {k: int(n) for k, n in bill.below("bytes.by_part")}},
        "cache": {k: int(n) for k, n in bill.below("cache") if "layers" not in k},
        "flops": {k.removeprefix("flops."): v for k, v in totals.items() if k.startswith("flops")},
        "elements": {k.removeprefix("elements."): v for k, v in totals.items() if k.startswith("elements")},
        "textbook": {
            b.name: {"formula": b.closed.formula, "value": int(b.closed), "counted": b.counted, "because": dict(b.because)}
            for b in closed_forms(bill)
        },
        "bounds": bounds(bill, scenario.hour) if scenario.alone or device is None else about(device),
        "notes": bill.notes,
    }
    if "bytes.dequantised" in bill:
        out["bytes"]["dequantised"] = int(bill["bytes.dequantised"])
    if "cache.bytes" in bill:
        out["cache"]["other_kinds"] = [
            {"kind": name, "bytes_per_token": int(b["cache.bytes_per_token"]), "bytes": int(b["cache.bytes"])}
            for name, b in list(other_kinds(bill))[1:]
        ]
    if (way := way_over(bill, scenario)) is not None:
        out["notes"] = [*bill.notes, *trained_in(bill, way, scenario)]
        out["training"] = {name: {"value": int(n), "formula": n.formula} for name, n in training(bill, way).items()}
        if report := training_bounds(bill, scenario):
            out["training_bounds"] = report
    if scenario.split is not None:
        out["ranks"] = over(bill, scenario.split, scenario.hour)
        if of_rank := trained_on_ranks(bill, scenario):
            out["ranks"]["training"] = {name: {"value": int(n), "formula": n.formula} for name, n in of_rank.items()}
    if scenario.draft is not None:
        out["draft"] = drafted(Drafted(bill, scenario.draft, MOST), scenario.accepted)
    return out


def drafted(both: Drafted, accepted: float | None) -> dict[str, Any]:
    """Return the memory of a model with its draft, and the tokens of a step by the accepted share; with a device, also their best rate."""
    device, bill = device_of(both.model), both.draft
    weights, rows = int(bill["bytes.total"]), []
    for share in SHARES if accepted is None else [accepted]:
        best = both.best(share, device)
        row: dict[str, Any] = {"accepted": share, "guesses": best.k, "tokens_a_step": best.tokens.value}
        if device is not None:
            rates = {"seconds": best.seconds(device), "tokens_per_second": best.rate(device), "over_plain": best.over_plain(device)}
            row |= {name: n.value for name, n in rates.items()}
        rows.append(row)
    out: dict[str, Any] = {
        "model": bill.model, "parameters": int(bill["parameters.total"]), "vocab": bill.config.vocab, "weights": weights,
        "cache": bytes_held(bill, bill.setting.context, bill.setting.batch) - weights, "held": int(both.memory), "rows": rows,
    }  # fmt: skip
    return out if device is None else out | {"fits": int(both.memory) <= device.memory}


def trained_in(bill: Bill, way: Way, scenario: Scenario) -> list[str]:
    """Return a note if the weights cannot be trained as they are stored, and one if the step is not counted over the ranks."""
    sizes = {"dtype": bill.setting.weights, "plain": bill.setting.activations}
    notes = [say("count.train.dtype", **sizes)] if way.rank is None and "bytes.dequantised" in bill else []
    return notes if counted_over(way, scenario) else [*notes, say("count.train.alone")]


def way_over(bill: Bill, scenario: Scenario) -> Way | None:
    """Return the way of training with the ranks that share the model, if all its weights train over them and each has as much of it."""
    way, split = scenario.way, scenario.split
    if way is None or split is None or scenario.alone or way.rank is not None or not divides(bill, split):
        return way
    return replace(way, split=split)


def counted_over(way: Way, scenario: Scenario) -> bool:
    """True if the bytes of a step are those of a rank, where there are several."""
    return scenario.alone or way.split.ranks > 1


def bounds(bill: Bill, hour: float | None = None) -> dict[str, Any]:
    """Return the best times, what fits and its price on one device of the bill; an empty dict if the bill has none."""
    device = device_of(bill)
    if device is None:
        return {}
    all_of_it, weights = bytes_held(bill, bill.setting.context, bill.setting.batch), int(bill["bytes.total"])
    out: dict[str, Any] = about(device) | {
        "weights": weights,
        "cache": all_of_it - weights,
        "fits": all_of_it <= device.memory,
        "devices": devices(bill, device),
    }
    if "cache.bytes" in bill:
        out |= {"largest_batch": largest_batch(bill, device), "longest_context": longest_context(bill, device)}
    for phase in PHASES:
        if f"flops.{phase}" in bill:
            every = parts(bill, phase, device)
            least = sum(p.seconds for p in every)
            out[phase] = {"seconds": least, "tokens_per_second": tokens(bill, phase) / least, "parts": [written(p) for p in every]}
            if hour is not None:
                out[phase]["price_of_a_million_tokens"] = price(bill, phase, device, hour)
    return out


def training_bounds(bill: Bill, scenario: Scenario) -> dict[str, Any]:
    """Return whether the scenario's step of training fits the bill's device, its best time, and the price of a million tokens.

    An empty dict if there is no such step or device, or the step is not counted over the ranks.
    """
    way, device = way_over(bill, scenario), device_of(bill)
    if way is None or device is None or not counted_over(way, scenario):
        return {}
    best = training_pace(bill, way, device, scenario.efficiency, training(bill, way))
    out: dict[str, Any] = about(device) | {
        "held": best.rank_bytes, "fits": best.fits, "seconds": best.seconds, "tokens_per_second": best.rate, "sets": best.sets,
    }  # fmt: skip
    return out if scenario.hour is None else out | {"price_of_a_million_tokens": best.price(scenario.hour)}


def about(device: Device) -> dict[str, Any]:
    """Return the name of `device` and the memory that a program can use."""
    return {"device": device.name, "memory": int(device.memory)}


def written(p: Part) -> dict[str, Any]:
    """Return the bound of part `p` as JSON."""
    return {"path": p.path, "layers": p.times, "flops": p.flops, "bytes": p.moved, "seconds": p.seconds, "sets": p.sets}


def over(bill: Bill, split: Split, hour: float | None = None) -> dict[str, Any]:
    """Return the memory and traffic of each rank of `split`; with a device, whether they fit and the best times part by part."""
    stages, device = spread(bill, split).stages, device_of(bill)
    out: dict[str, Any] = {
        "ranks": split.ranks,
        "split": split.sizes(),
        "stages": [
            {"layers": list(s.layers), "parameters": s.parameters, "weights": s.weights, "cache": s.cache, "sent": sent_to_json(s.sent)}
            for s in stages
        ],
    }
    if device is None:
        return out
    most = max(s.weights + s.cache for s in stages)
    out["bounds"] = {"held": most, "fits": most <= device.memory}
    if "cache.bytes" in bill:
        out["bounds"] |= {
            "largest_batch": ranks.largest_batch(bill, split, device),
            "longest_context": ranks.longest_context(bill, split, device),
        }
    for phase in stages[0].sent:
        best = pace(bill, split, phase, device)
        out["bounds"][phase] = {"seconds": best.seconds, "stages": list(best.stages), "tokens_per_second": best.rate}
        out["bounds"][phase]["parts"] = [
            {"stage": i} | written(p) for i, rank in enumerate(ranks.ranks(bill, split)) for p in parts(bill, phase, device, rank)
        ]
        if device.link is not None:
            out["bounds"][phase]["exchange"] = exchanged(best.stages, [s.sent[phase] for s in stages], device.link)
        if hour is not None:
            out["bounds"][phase]["price_of_a_million_tokens"] = best.price(split.ranks, hour)
    return out


def trained_on_ranks(bill: Bill, scenario: Scenario) -> dict[str, Number]:
    """Return what one of the ranks that share a model holds and sends in a training step of one forward. {} for what does not train so."""
    split, way = scenario.split, scenario.way
    if split is None or way is None or way.rank is not None or split.ranks != max(split.tp, split.experts) or split.ranks == 1:
        return {}
    narrow, n = int(BYTES[bill.setting.activations]), way.shards
    counts = of_rank(bill, TrainingGrid(split, n, n, recompute=way.recompute), at_least(narrow), narrow)
    own = lasting_of(bill, replace(way, split=split))
    return own | {name: number for name, number in counts.items() if name not in own}


def exchanged(work: Sequence[float], sent: Sequence[Mapping[str, Number]], link: float) -> dict[str, float]:
    """Return the seconds that the stages' exchanges take over a link, and a step's: behind the work at best, after it at worst."""
    each = [int(by["total"]) / link if "total" in by else 0.0 for by in sent]
    both = list(zip(work, each, strict=True))
    return {"seconds": sum(each), "best": sum(max(pair) for pair in both), "worst": sum(map(sum, both))}


def sent_to_json(sent: dict[str, dict[str, Number]]) -> dict[str, Any]:
    """Return the bytes that a rank sends, with their formulas, as JSON."""
    return {phase: {name: {"value": int(n), "formula": n.formula} for name, n in by.items()} for phase, by in sent.items()}


def reasons(bill: Bill, path: str) -> list[dict[str, Any]]:
    """Return the number at `path` with its formula, then the numbers that its formula uses."""
    number = bill[path]
    paths = [path, *(p for p in number.of if p in bill)]
    return [{"path": p, "value": bill[p].value, "formula": bill[p].formula} for p in paths]
