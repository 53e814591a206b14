"""Training and several devices as lines of a terminal: memory, FLOPs and traffic with their formulas."""

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from pellucid.counting import Bill, Number
from pellucid.counting.bounds import parts
from pellucid.counting.ranks import Split, ranks, spread
from pellucid.counting.training_memory import Way, training
from pellucid.documents.amount import Amount, figures, scaled
from pellucid.documents.count import Scenario, device_of, trained_in, trained_on_ranks, way_over
from pellucid.documents.number import count
from pellucid.messages import say
from pellucid.terminal import bounds as drawing
from pellucid.terminal.bounds import headed, set_by
from pellucid.terminal.table import Cell, Column, prose, table

MEMORY = {
    "weights": "count.train.weights", "adapters": "count.train.adapters", "gradients": "count.train.gradients",
    "moments": "count.train.moments", "master": "count.train.master", "copy": "count.train.copy",
    "teacher": "count.train.teacher",
    "activations": "count.train.activations", "loss": "count.train.loss",
    "at_loss": "count.train.at_loss", "at_backward": "count.train.at_backward",
    "at_embedding": "count.train.at_embedding", "at_update": "count.train.at_update",
    "at_reference": "count.train.at_reference", "at_draws": "count.train.at_draws", "at_teacher": "count.train.at_teacher",
    "total": "count.train.memory",
}  # fmt: skip
FLOPS = {
    "forward": "count.train.forward", "adapters": "count.train.adapting", "backward": "count.train.backward",
    "recompute": "count.train.recompute", "teacher": "count.train.of_teacher", "draws": "count.train.draws",
    "multi_token": "count.train.multi_token", "dora": "count.train.dora",
    "total": "count.train.work", "textbook": "count.train.textbook", "attention": "count.train.attention",
    "idle": "count.train.idle",
}  # fmt: skip
SENT = {
    "all_reduce": "count.ranks.all_reduce", "all_to_all": "count.ranks.all_to_all", "pipeline": "count.ranks.pipeline",
    "logits": "count.ranks.logits", "total": "count.ranks.sent",
}  # fmt: skip
RANK = {
    "weights": "count.train.weights", "adapters": "count.train.adapters", "gradients": "count.train.gradients",
    "moments": "count.train.moments", "master": "count.train.master", "gathered": "count.recipe.gathered",
    "scattered": "count.recipe.scattered", "added_up": "count.recipe.added_up", "summed": "count.recipe.summed",
    "shared": "count.recipe.shared", "logits": "count.recipe.logits", "partial": "count.recipe.partial",
    "matrices": "count.recipe.matrices", "sent": "count.recipe.sent",
}  # fmt: skip
PHASES = {"prefill": "count.prefill", "decode": "count.decode"}
COLUMNS = [Column(), Column(">"), Column(style="dim")]


def phase_of(phase: str) -> str:
    """Return a phase's name in the user's language."""
    return say(PHASES[phase])


def row(name: str, n: Number, unit: str) -> list[Cell]:
    """Return a row: a name, an amount, its formula."""
    amount = f"{n.value:,}" if n.value < 0 else scaled(n.value, unit)
    return [name, amount, " = ".join(x for x in (n.symbols, n.filled) if x)]


def trained(bill: Bill, way: Way, view: Scenario, report: Mapping[str, Any], width: int) -> list[Text]:
    """Write the memory and FLOPs of one training step, and on a device whether it fits, its best time and its price. report: its bounds."""
    way = way_over(bill, view) or way
    cost = training(bill, way)
    s, sizes = bill.setting, {"ranks": way.shards * way.split.ranks}
    title = "count.train" if way.split.ranks == 1 else "count.train.of_rank"
    out = [Text(say(title, context=count(s.context), batch=count(s.batch), **sizes), "bold")]
    memory = [row(held_as(bill, way, name), cost[f"memory.{name}"], "B") for name in MEMORY if f"memory.{name}" in cost]
    worked = [row(say(FLOPS[name]), cost[f"flops.{name}"], "FLOP") for name in FLOPS if f"flops.{name}" in cost]
    out += [
        *table([*headed(say("count.head.memory"), say("count.head.amount"), say("count.head.formula")), *memory], COLUMNS),
        *table([*headed(say("count.head.work"), say("count.head.amount"), say("count.head.formula")), *worked], COLUMNS),
    ]
    if report:
        out += on_device(report, view, width, way)
    out += [line for note in trained_in(bill, way, view) for line in prose(note, width)]
    out += prose(say("count.train.note"), width, "dim")
    return out + (prose(say("count.train.difference"), width, "dim") if "flops.idle" in cost else [])


def on_device(report: Mapping[str, Any], view: Scenario, width: int, way: Way) -> list[Text]:
    """Write the bounds of a training step."""
    sizes = {"device": report["device"], "held": scaled(report["held"], "B"), "memory": scaled(report["memory"], "B")}
    sizes["ranks"] = way.shards * way.split.ranks
    out = prose(say("count.train.fits" if report["fits"] else "count.train.large", **sizes), width, "" if report["fits"] else "bold red")
    rate, share = figures(report["tokens_per_second"]), f"{view.efficiency:g}"
    line = say("count.train.pace", seconds=Amount(report["seconds"], "s"), rate=rate, sets=set_by(report["sets"]), efficiency=share)
    return out + prose(drawing.priced(line, report.get("price_of_a_million_tokens"), view.hour), width)


def held_as(bill: Bill, way: Way, name: str) -> str:
    """Name a row of memory: frozen weights by their stored format, moments by their optimizer, others by `MEMORY`."""
    if name == "weights" and way.rank is not None:
        return say("count.train.frozen", dtype=bill.setting.weights)
    if name == "weights" and "bytes.dequantised" in bill:
        return say("count.train.plain", dtype=bill.setting.activations)
    if name == "moments" and way.single:
        return say("count.train.moments_of_muon")
    return say(MEMORY[name])


def over_ranks(bill: Bill, view: Scenario, split: Split, report: Mapping[str, Any], width: int) -> list[Text]:
    """Write the parameters and bytes of each rank, and the bytes that it sends. report: the bounds of `over`, empty without a device."""
    plan = spread(bill, split)
    out = [Text(say("count.over", ranks=split.ranks, split=", ".join(f"{name} {n}" for name, n in split.sizes().items())), "bold")]
    rows = headed(say("count.head.rank"), say("count.ranks.parameters"), say("count.ranks.weights"), say("count.ranks.past"))
    for stage in plan.stages:
        sizes = [count(stage.parameters), scaled(stage.weights, "B"), scaled(stage.cache, "B")]
        rows.append([say("count.stage", **between(bill, stage.layers)), *sizes])
    out += table(rows, [Column(), Column(">"), Column(">"), Column(">")])
    ends = [plan.stages[0], plan.stages[-1]] if split.pp > 1 else plan.stages
    for phase in PHASES:
        for stage in ends:
            if sent := stage.sent.get(phase):
                out.append(Text(" " + say("count.sent", phase=phase_of(phase), **between(bill, stage.layers))))
                out += table([row(say(SENT[name]), n, "B") for name, n in sent.items()], COLUMNS, indent=2)
    if of_rank := trained_on_ranks(bill, view):
        out += one_rank(", ".join(f"{name} {n}" for name, n in split.sizes().items()), of_rank)
    return out + over_device(bill, view, split, report, width) + prose(say("count.over.note"), width, "dim")


def one_rank(grid: str, counts: Mapping[str, Number], muon: bool = False) -> list[Text]:
    """Write what one rank of a training grid holds, and sends in a step. muon: some moments are Muon's."""
    names = {name: say("count.train.moments_of_muon") if muon and name == "moments" else say(RANK[name]) for name in counts}
    rows = [row(names[name], n, "B") for name, n in counts.items()]
    return [Text(say("count.recipe.rank", grid=grid), "bold"), *table(rows, COLUMNS)]


def over_device(bill: Bill, view: Scenario, split: Split, report: Mapping[str, Any], width: int) -> list[Text]:
    """Write whether each rank's share fits on the device, and the ranks' bounds and price, part by part."""
    device = device_of(bill)
    if device is None or not report:
        return []
    sizes = {"device": device.name, "held": scaled(report["held"], "B"), "memory": scaled(int(device.memory), "B")}
    out = prose(say("count.over.fits", **sizes) if report["fits"] else say("count.over.large", **sizes), width)
    if report["fits"] and "largest_batch" in report:
        out += largest(bill, report, width)
    every = ranks(bill, split)
    for phase in PHASES:
        if phase not in report:
            continue
        rate, price = figures(report[phase]["tokens_per_second"]), report[phase].get("price_of_a_million_tokens")
        title = say("count.over.pace", phase=phase_of(phase), ranks=split.ranks, seconds=Amount(report[phase]["seconds"], "s"), rate=rate)
        out += prose(drawing.priced(title, price, view.hour), width)
        if "exchange" in report[phase] and device.link is not None:
            takes = {name: Amount(seconds, "s") for name, seconds in report[phase]["exchange"].items()}
            out += prose(say("count.over.exchange", link=scaled(device.link, "B"), source=device.link_source, **takes), width, "dim")
        for i, rank in enumerate(every):
            least = Amount(report[phase]["stages"][i], "s")
            own = say("count.over.stage", phase=phase_of(phase), seconds=least, **between(bill, rank.bounds))
            if i in (0, len(every) - 1) and report[phase]["stages"][i]:  # an encoder's rank rests while a decoder writes
                out += drawing.phase(own, parts(bill, phase, device, rank), width)
    return out + drawing.sources(device, width)


def largest(bill: Bill, report: Mapping[str, Any], width: int) -> list[Text]:
    """Write the largest batch at this context, and the longest context at this batch."""
    batch, context = (any_of(report[name]) for name in ("largest_batch", "longest_context"))
    at, of = count(bill.setting.context), count(bill.setting.batch)
    return prose(say("count.largest", batch=batch, context=context, at=at, of=of), width)


def any_of(n: int | None) -> str:
    """Write a limit, or the word for none."""
    return say("count.any") if n is None else count(n)


def between(bill: Bill, bounds: tuple[int, int]) -> dict[str, str]:
    """Return the names of a stage's first and last layer."""
    reads = bill.config.encoder
    names = [f"encoder.{i}" for i in range(len(reads))] if reads else []
    names += [f"decoder.{i}" if reads else str(i) for i in range(len(bill.config.layers))]
    return {"first": names[bounds[0]], "last": names[bounds[1] - 1]}
