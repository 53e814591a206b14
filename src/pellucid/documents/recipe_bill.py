"""The bill of a recipe before it runs: the memory and work of a step, and of all steps."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pellucid.api.count import billed
from pellucid.counting import Bill
from pellucid.counting.training_memory import Way, training
from pellucid.documents.count import Scenario, device_of, document
from pellucid.errors import UseError
from pellucid.families import understand
from pellucid.messages import say
from pellucid.training.recipe import Recipe, read_recipe
from pellucid.training.shards import TOKENIZER, load_tokenizer, size_of, taken
from pellucid.training.texts import Texts

DTYPE = "float32"  # of weights, gradients and moments, as the loop has them


@dataclass(frozen=True)
class RecipeBill:
    """A recipe's counts. bill: of one forward's rows, each full and of one document.  hour: the price of the device for an hour."""

    bill: Bill
    steps: int
    forwards: int
    hour: float | None

    @property
    def scenario(self) -> Scenario:
        """Return the scenario of the bill: training in one dtype."""
        return Scenario(self.hour, Way(master=False))

    def run(self) -> dict[str, int | float | None]:
        """Return the counts of the run. hours: at the device's peak, so that no run is shorter; None without a device that names one."""
        s, device = self.bill.setting, device_of(self.bill)
        forwards = self.steps * self.forwards
        flops = forwards * int(training(self.bill, Way(master=False))["flops.total"])
        peak = device.peak.get(DTYPE) if device is not None else None
        hours = flops / peak / 3600 if peak else None
        price = None if hours is None or self.hour is None else hours * self.hour
        return {"steps": self.steps, "tokens": forwards * s.batch * s.context, "flops": flops, "hours": hours, "price": price}

    def document(self) -> dict[str, Any]:
        """Return the bill as JSON."""
        return document(self.bill, self.scenario) | {"run": self.run()}


def recipe_bill(path: Path, device: str | None = None, price: float | None = None) -> RecipeBill:
    """Return the bill of a recipe of texts. device: whose peak gives the hours.  price: of it for an hour."""
    recipe = read_recipe(path)
    if not isinstance(recipe.data, Texts):
        raise UseError("count.recipe.facts", path=path)
    family, cfg = understand({**recipe.model, "vocab_size": ids_of(recipe, recipe.data)}, str(path))
    rows = recipe.train.micro or recipe.train.batch
    bill = billed(cfg, family.name, recipe.name, recipe.data.length, rows, DTYPE, DTYPE, device, plain=DTYPE)
    bill.notes.append(say("count.recipe.note", forwards=recipe.train.batch // rows))
    return RecipeBill(bill, recipe.train.steps, recipe.train.batch // rows, price)


def ids_of(recipe: Recipe, data: Texts) -> int:
    """Return the most ids that the recipe's tokenizer has."""
    if "from" in recipe.tokenizer:
        return size_of(load_tokenizer(taken(data, recipe.tokenizer) / TOKENIZER))
    size: int = recipe.tokenizer["size"]
    return size
