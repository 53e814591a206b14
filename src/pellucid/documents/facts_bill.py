"""The bill of a recipe of facts. Its documents are made as the run makes them, so each forward of each step is known before it runs.

a forward    the documents of a step, or `micro` of them, sorted by length and padded to the longest
memory       of the forward that takes the most; the run is counted as one process
the run      tokens that carry loss, and the work of all forwards with their padding: exact
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from pellucid.api.count import billed
from pellucid.counting import Bill
from pellucid.counting.training_memory import Way, memory
from pellucid.counting.training_work import work
from pellucid.documents.aim_bill import extra_of
from pellucid.families import understand
from pellucid.messages import say
from pellucid.nn.transformer import EncoderDecoder, build
from pellucid.training.loop import check, feed, micro_batches
from pellucid.training.objectives import IGNORED, Document, Objective
from pellucid.training.pipeline import examples, prepare
from pellucid.training.recipe import Recipe
from pellucid.training.run_length import TOGETHER, with_steps
from pellucid.training.shards import size_of
from pellucid.training.start import add_modules, fit, numbered
from pellucid.watching.meta import META


class ForwardShape(NamedTuple):
    """A forward of a run. texts: of its batch.  rows: of each text, with padding.  source: rows that an encoder reads, None without one."""

    texts: int
    rows: int
    source: int | None


class FactsBill(NamedTuple):
    """The counts of a recipe of facts. bill, way: of the forward that takes the most memory.  steps, tokens, flops: of the run."""

    bill: Bill
    way: Way
    steps: int
    tokens: int
    flops: int


def facts_bill(recipe: Recipe, way: Way, device: str | None = None) -> FactsBill:
    """Return the counts of a recipe of facts. way: how it trains.  A TrainError for what the run would refuse of model and documents."""
    objective = prepare(recipe, Path())  # nothing is written of facts
    documents, _ = examples(recipe, objective)
    recipe = with_steps(recipe, objective, documents)
    hf = {**recipe.model, "vocab_size": size_of(objective.tokenizer), **numbered(objective)}
    family, cfg = understand(hf, str(recipe.path))
    with META:
        model = build(cfg)
        fit(recipe, model, hf, objective)
        add_modules(model, recipe, hf)
    check(objective, documents, cfg.vocab, cfg.positions)

    def counted(shape: ForwardShape) -> tuple[Bill, Way]:
        dtype = recipe.train.dtype
        own = billed(cfg, family.name, recipe.name, shape.rows, shape.texts, dtype, dtype, device, shape.source, plain=dtype)
        return own, replace(way, extra=extra_of(recipe, own))

    targets = targets_of(objective, documents)
    shapes, tokens = Counter[ForwardShape](), 0
    for numbers in islice(feed(documents, recipe.train, 0), recipe.train.steps):
        tokens += sum(targets[i] for i in numbers)
        shapes.update(shape_of(objective, [documents[i] for i in part]) for part in micro_batches(numbers, recipe.train.micro))
    flops = sum(times * int(work(*counted(shape))["flops.total"]) for shape, times in shapes.items())
    bill, how = max((counted(shape) for shape in largest(shapes)), key=lambda one: int(memory(*one)["memory.total"]))
    bill.notes.append(say("count.recipe.facts", texts=bill.setting.batch, rows=bill.setting.context))
    return FactsBill(bill, how, recipe.train.steps, tokens, flops)


def shape_of(objective: Objective, documents: Sequence[Document]) -> ForwardShape:
    """Return the shape of the batch of these documents."""
    if objective.kind is EncoderDecoder:
        return ForwardShape(len(documents), max(len(d.target) for d in documents), max(len(d.given) for d in documents))
    return ForwardShape(len(documents), max(map(objective.rows, documents)), None)


def targets_of(objective: Objective, documents: Sequence[Document]) -> list[int]:
    """Return the number of tokens of each document that carry loss."""
    parts = (documents[i : i + TOGETHER] for i in range(0, len(documents), TOGETHER))
    return [n for part in parts for n in (objective.batch(part).targets != IGNORED).sum(1).tolist()]


def largest(shapes: Iterable[ForwardShape]) -> Iterator[ForwardShape]:
    """Yield the shapes than which no other is larger in every way: one of them takes the most memory."""
    every = list(shapes)
    for shape in every:
        if not any(other != shape and all(a >= b for a, b in zip(sizes(other), sizes(shape), strict=True)) for other in every):
            yield shape


def sizes(shape: ForwardShape) -> tuple[int, int, int]:
    """Return the three sizes of a shape as numbers."""
    return shape.texts, shape.rows, shape.source or 0
