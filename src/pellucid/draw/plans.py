"""Training and several devices, as lines of a terminal: what each takes, with its formula."""

from rich.text import Text

from pellucid.counting import Bill, Number
from pellucid.counting.ranks import Split, Stage, spread
from pellucid.counting.training import Way, training
from pellucid.draw.amount import Amount, scaled
from pellucid.draw.bill_json import device_of, over
from pellucid.draw.number import count
from pellucid.draw.table import Cell, Column, prose, table
from pellucid.words import say

MEMORY = {
    "weights": "count.train.weights", "adapters": "count.train.adapters", "gradients": "count.train.gradients",
    "moments": "count.train.moments", "master": "count.train.master", "activations": "count.train.activations", "total": "count.total",
}  # fmt: skip
FLOPS = {
    "forward": "count.train.forward", "adapters": "count.train.adapters", "backward": "count.train.backward",
    "recompute": "count.train.recompute", "total": "count.total", "textbook": "count.train.textbook",
    "attention": "count.train.attention", "idle": "count.because.idle",
}  # fmt: skip
SENT = {
    "all_reduce": "count.ranks.all_reduce", "all_to_all": "count.ranks.all_to_all", "pipeline": "count.ranks.pipeline",
    "logits": "count.ranks.logits", "total": "count.total",
}  # fmt: skip
PHASES = {"prefill": "count.prefill", "decode": "count.decode"}
COLUMNS = [Column(), Column(">"), Column(style="dim")]


def phase_of(phase: str) -> str:
    """A phase, as people call it."""
    return say(PHASES[phase])


def row(name: str, n: Number, unit: str) -> list[Cell]:
    """A name, an amount, its formula."""
    amount = f"{n.value:,}" if n.value < 0 else scaled(n.value, unit)
    return [name, amount, " = ".join(x for x in (n.symbols, n.filled) if x)]


def trained(bill: Bill, way: Way, width: int) -> list[Text]:
    """One step of training."""
    found = training(bill, way)
    s = bill.setting
    out = [Text(say("count.train", context=count(s.context), batch=count(s.batch)), "bold")]
    out += table([row(say(MEMORY[name]), found[f"memory.{name}"], "B") for name in MEMORY if f"memory.{name}" in found], COLUMNS)
    out += table([row(say(FLOPS[name]), found[f"flops.{name}"], "FLOP") for name in FLOPS if f"flops.{name}" in found], COLUMNS)
    out += prose(say("count.train.note"), width, "dim")
    return out + (prose(say("count.train.difference"), width, "dim") if "flops.idle" in found else [])


def over_ranks(bill: Bill, split: Split, width: int) -> list[Text]:
    """What ranks hold, and what they send."""
    found = spread(bill, split)
    out = [Text(say("count.over", ranks=split.ranks, tp=split.tp, pp=split.pp, ep=split.ep), "bold")]
    rows: list[list[Cell]] = [["", say("count.parameters"), say("count.train.weights"), say("count.ranks.past")]]
    for stage in found.stages:
        sizes = [count(stage.parameters), scaled(stage.weights, "B"), scaled(stage.cache, "B")]
        rows.append([say("count.stage", **between(bill, stage)), *sizes])
    out += table(rows, [Column(), Column(">"), Column(">"), Column(">")])
    ends = [found.stages[0], found.stages[-1]] if split.pp > 1 else found.stages
    for phase in PHASES:
        for stage in ends:
            if sent := stage.sent.get(phase):
                out.append(Text(" " + say("count.sent", phase=phase_of(phase), **between(bill, stage))))
                out += table([row(say(SENT[name]), n, "B") for name, n in sent.items()], COLUMNS, indent=2)
    return out + over_device(bill, split, width) + prose(say("count.over.note"), width, "dim")


def over_device(bill: Bill, split: Split, width: int) -> list[Text]:
    """Whether each rank's share fits on the bill's device, and how fast they can be at best."""
    device, whole = device_of(bill), over(bill, split)
    if device is None:
        return []
    told, most = whole["bounds"], max(stage["weights"] + stage["cache"] for stage in whole["stages"])
    sizes = {"device": device.name, "held": scaled(most, "B"), "memory": scaled(int(device.memory), "B")}
    out = prose(say("count.over.fits", **sizes) if told["fits"] else say("count.over.large", **sizes), width)
    for phase in PHASES:
        if phase in told:
            rate = f"{told[phase]['tokens_per_second']:.4g}"
            out += prose(say("count.over.pace", phase=phase_of(phase), seconds=Amount(told[phase]["seconds"], "s"), rate=rate), width)
    return out


def between(bill: Bill, stage: Stage) -> dict[str, str]:
    """A stage's first and last layer, as they are called."""
    reads = bill.config.encoder
    names = [f"encoder.{i}" for i in range(len(reads))] if reads else []
    names += [f"decoder.{i}" if reads else str(i) for i in range(len(bill.config.layers))]
    return {"first": names[stage.layers[0]], "last": names[stage.layers[1] - 1]}
