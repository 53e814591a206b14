"""The bill of a recipe before it runs: the memory and work of a step, and of all steps. Of texts their files are not read; of facts
every step is known.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pellucid.api.count import billed
from pellucid.checkpoint.disk import free_memory
from pellucid.checkpoint.new_adapter import short, targeted
from pellucid.config import Config
from pellucid.counting import Bill
from pellucid.counting.bill import BYTES
from pellucid.counting.number import Number, total
from pellucid.counting.ranks import Split
from pellucid.counting.training_adapters import Dora
from pellucid.counting.training_extra import at_least
from pellucid.counting.training_memory import Way, memory, training
from pellucid.counting.training_modules import numbers
from pellucid.counting.training_ranks import TrainingGrid, of_rank, orthogonalised
from pellucid.counting.training_share import divides
from pellucid.documents.aim_bill import extra_of, longest_text
from pellucid.documents.count import Scenario, device_of, document
from pellucid.documents.facts_bill import FactsBill, facts_bill
from pellucid.errors import PellucidError, TrainError, UseError
from pellucid.families import understand
from pellucid.families.family import Family
from pellucid.messages import say
from pellucid.nn.multi_token import stands_alone
from pellucid.nn.transformer import build
from pellucid.training.pipeline import tokenizer_table
from pellucid.training.recipe import ONE_PROCESS, Recipe, read_recipe
from pellucid.training.recipe_tables import PreferSettings, RanksSettings, RewardSettings
from pellucid.training.shards import TOKENIZER, load_tokenizer, size_of, taken
from pellucid.training.start import base_folder, described
from pellucid.training.texts import Texts
from pellucid.watching.meta import META


@dataclass(frozen=True)
class RecipeBill:
    """A recipe's counts. bill: of one forward's rows, each full and of one document.  hour: the price of the device for an hour.

    steps: of the run, at least where the recipe gives tokens; None where it gives epochs, since the tokens are not made yet.
    way: what trains, all weights or an adapter, and in which dtypes.  ranks: that share the training.
    facts: the exact counts of a recipe of facts; None of texts, whose rows are counted full.
    """

    bill: Bill
    steps: int | None
    forwards: int
    hour: float | None
    way: Way
    ranks: RanksSettings = ONE_PROCESS
    facts: FactsBill | None = None

    @property
    def scenario(self) -> Scenario:
        """Return the scenario of the bill."""
        return Scenario(self.hour, self.way)

    def run(self) -> dict[str, int | float | None]:
        """Return the counts of the run. hours: at the device's peak, so that no run is shorter; None without a device that names one."""
        s, device = self.bill.setting, device_of(self.bill)
        if self.steps is None:
            return dict.fromkeys(("steps", "tokens", "flops", "hours", "price"))
        if self.facts is not None:
            tokens, flops = self.facts.tokens, self.facts.flops
        else:
            forwards = self.steps * self.forwards
            tokens, flops = forwards * s.batch * s.context, forwards * int(training(self.bill, self.way)["flops.total"])
        peak = device.peak.get(s.activations) if device is not None else None
        hours = flops / peak / 3600 if peak else None
        price = None if hours is None or self.hour is None else hours * self.hour
        return {"steps": self.steps, "tokens": tokens, "flops": flops, "hours": hours, "price": price}

    def rank(self) -> dict[str, Number]:
        """Return the bytes that one of several ranks holds of weights, gradients and moments, and sends in a step.

        {} for one process, and for adapters that tensor, expert or shard ranks divide.
        """
        r = self.ranks
        if r.processes == 1:
            return {}
        if self.way.rank is not None:
            return of_adapters(self.bill, self.way, r.data) if r.processes == r.data and r.shard == 1 else {}
        split = Split(tp=r.tensor, experts=r.expert)
        narrow = int(BYTES[self.bill.setting.activations])
        grid = TrainingGrid(split, r.data, r.shard, -(-self.forwards // r.data), self.way.recompute, self.way.single > 0)
        return of_rank(self.bill, grid, at_least(narrow), narrow)

    def document(self) -> dict[str, Any]:
        """Return the bill as JSON."""
        rank = {name: {"value": int(n), "formula": n.formula} for name, n in self.rank().items()}
        return document(self.bill, self.scenario) | {"run": self.run()} | ({"rank": rank} if rank else {})


def recipe_bill(path: Path, device: str | None = None, price: float | None = None, root: Path | None = None) -> RecipeBill:
    """Return the bill of a recipe. device: whose peak gives the hours.  price: of it for an hour.  root: of its files."""
    recipe = read_recipe(path, root)
    return bill_of_texts(recipe, recipe.data, device, price) if isinstance(recipe.data, Texts) else bill_of_facts(recipe, device, price)


def bill_of_facts(recipe: Recipe, device: str | None = None, price: float | None = None) -> RecipeBill:
    """Return the bill of a recipe whose data are facts, given or invented."""
    s = recipe.train
    way = Way(recompute=s.recompute, master=s.rounds, summed=(s.micro or s.batch) < s.batch, copied=s.save_beside)
    facts = facts_bill(recipe, way, device)
    facts.bill.notes.extend(notes_of_modules(recipe, facts.bill))
    way = with_muon(recipe, facts.bill, facts.way)
    way = over_ranks(recipe, facts.bill, way)
    return RecipeBill(facts.bill, facts.steps, s.batch // (s.micro or s.batch), price, way, recipe.ranks, facts)


def bill_of_texts(recipe: Recipe, data: Texts, device: str | None = None, price: float | None = None) -> RecipeBill:
    """Return the bill of a recipe whose data are texts."""
    if recipe.base is None:
        family, cfg = understand({**recipe.model, "vocab_size": ids_of(recipe, data)}, str(recipe.path))
    else:
        family, cfg = described(base_folder(recipe))
    data.require_positions(cfg.positions)
    rows, dtype = recipe.train.micro or recipe.train.batch, recipe.train.dtype
    stored = (recipe.base.quant if recipe.base else None) or dtype
    texts, length = rows * recipe.texts_a_row, longest_text(recipe, data, cfg)
    bill = billed(cfg, family.name, recipe.name, length, texts, stored, dtype, device, plain=dtype)
    bill.notes.append(say("count.recipe.note", forwards=recipe.train.batch // rows))
    bill.notes += notes_of_modules(recipe, bill)
    if isinstance(recipe.aim, PreferSettings):
        bill.notes.append(say("count.recipe.reference"))
    if isinstance(recipe.aim, RewardSettings):
        bill.notes.append(say("count.recipe.draws", group=recipe.aim.group, new=recipe.aim.new))
    steps: int | None = recipe.train.steps
    if recipe.length is not None:
        tokens = recipe.length.tokens
        steps = None if tokens is None else math.ceil(tokens / (recipe.train.batch * recipe.texts_a_row * length))
        bill.notes.append(say("count.recipe.epochs" if tokens is None else "count.recipe.least"))
    way = with_muon(recipe, bill, replace(way_of(recipe, data, family, cfg), extra=extra_of(recipe, bill)))
    return RecipeBill(bill, steps, recipe.train.batch // rows, price, over_ranks(recipe, bill, way), recipe.ranks)


def over_ranks(recipe: Recipe, bill: Bill, way: Way) -> Way:
    """Return the way of training on one of a recipe's ranks, where all weights train; rows of shards are not counted."""
    r = recipe.ranks
    if way.rank is not None or r.processes == 1:
        return way
    split = Split(tp=r.tensor, experts=r.expert)
    return replace(way, data=r.data, split=split if divides(bill, split) else way.split)


def notes_of_modules(recipe: Recipe, bill: Bill) -> list[str]:
    """Return the note of a recipe's modules for multi-token prediction. A TrainError for a model that can have none."""
    if recipe.multi_token is None:
        return []
    if not stands_alone(bill.config):
        raise TrainError("train.multi_token", path=recipe.path, found=bill.family)
    depth = recipe.multi_token.depth
    return [say("count.recipe.multi_token", modules=depth, parameters=f"{numbers(bill.config, depth):,}")]


def with_muon(recipe: Recipe, bill: Bill, way: Way) -> Way:
    """Return `way` with the numbers of which Muon keeps one moment; as it is for AdamW."""
    if recipe.train.optimizer != "muon":
        return way
    matrices = (c for c in bill.weights if orthogonalised(c.path, len(c.weight.shape)))
    single = sum(c.times * c.weight.count for c in matrices) + numbers(bill.config, way.extra.modules, of_muon=True)
    return replace(way, single=single if way.low is None else way.low)  # adapters are matrices


def of_adapters(bill: Bill, way: Way, ranks: int) -> dict[str, Number]:
    """Return what each of several data ranks with a complete model holds and sends, of which an adapter trains."""
    parts = memory(bill, way)
    out = {name: parts[f"memory.{name}"] for name in ("weights", "adapters", "gradients", "moments")}
    size = int(parts["memory.adapters"])
    sent = Number(2 * (ranks - 1) * size // ranks, "2·(n−1)/n·adapters", f"2·{ranks - 1}/{ranks}·{size:,}")
    return out | {"added_up": sent, "sent": total([("added_up", 1, sent)])}


def require_memory(path: Path, root: Path, free: Callable[[], int | None] = free_memory) -> None:
    """Raise UseError if the bill of a recipe of texts, in one process, is more than the free memory. It names a `micro` that fits.

    What else is wrong with the recipe is left to the run, which says it.
    """
    available = free()
    try:
        recipe = read_recipe(path, root)
        if available is None or not isinstance(recipe.data, Texts) or recipe.ranks.processes > 1:
            return
        own = bill_of_texts(recipe, recipe.data)
    except PellucidError:
        return
    counts = training(own.bill, own.way)
    if int(counts["memory.total"]) <= available:
        return
    figures = {
        "needed": gigabytes(counts["memory.total"]),
        "free": gigabytes(available),
        "activations": gigabytes(counts["memory.activations"]),
    }
    for rows in range((recipe.train.micro or recipe.train.batch) - 1, 0, -1):
        if recipe.train.batch % rows == 0:
            smaller = bill_of_texts(replace(recipe, train=replace(recipe.train, micro=rows)), recipe.data)
            less = training(smaller.bill, smaller.way)["memory.total"]
            if int(less) <= available:
                raise UseError("train.memory.micro", **figures, micro=rows, less=gigabytes(less))
    raise UseError("train.memory", **figures)


def gigabytes(n: Number | int) -> str:
    """Return a number of bytes in GB, with one digit behind the point."""
    return f"{int(n) / 1e9:.1f}"


def way_of(recipe: Recipe, data: Texts, family: Family, cfg: Config) -> Way:
    """Return what trains, and in which dtypes. The matrices of an adapter are found as the run finds them, on a model without numbers."""
    a, s = recipe.adapter, recipe.train
    several = (s.micro or s.batch) < s.batch
    apart = data.pack == "documents" or isinstance(recipe.aim, RewardSettings)
    every = Way(recompute=s.recompute, master=s.rounds, summed=several, packed=apart, copied=s.save_beside)
    if a is None:
        return every
    with META:
        module = build(cfg)
    groups = targeted(module, family, a.targets).values()
    shapes = [[tuple(module.get_parameter(n).shape) for n in group.ours] for group in groups]
    low = sum(a.rank * (same[0][1] + sum(out for out, _ in same)) for same in shapes)
    paths = {short(n.removesuffix(".weight")) for group in groups for n in group.ours}
    matrices = [shape for same in shapes for shape in same]
    dora = Dora(sum(out for out, _ in matrices), sum(out * width for out, width in matrices)) if a.dora else None
    return replace(every, rank=a.rank, adapted=tuple(sorted(paths)), low=low, dropout=a.dropout > 0, dora=dora)


def ids_of(recipe: Recipe, data: Texts) -> int:
    """Return the most ids that the recipe's tokenizer has."""
    if "from" in (table := tokenizer_table(recipe)):
        return size_of(load_tokenizer(taken(data, table) / TOKENIZER))
    size: int = table["size"]
    return size
