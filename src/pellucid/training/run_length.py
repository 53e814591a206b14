"""The length of a run whose recipe gives tokens or epochs: the steps follow once the data is known.

epochs = 2        ⌈epochs · steps of an epoch⌉ steps
tokens = 1e6      ⌈tokens · steps of an epoch / targets of an epoch⌉ steps        a target is a token that carries loss
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from pellucid.training.criterion import targets_in
from pellucid.training.objectives import Document, Objective
from pellucid.training.recipe import Recipe
from pellucid.training.text_rows import TrainingRows

TOGETHER = 256  # documents whose targets are counted at once


def with_steps(recipe: Recipe, objective: Objective, documents: Sequence[Document]) -> Recipe:
    """Return the recipe with its number of steps. documents: that are trained on."""
    if recipe.length is None or not len(documents):
        return recipe
    epoch = epoch_steps(documents, recipe.train.batch, recipe.train.pool)
    if recipe.length.epochs is not None:
        steps = recipe.length.epochs * epoch
    else:
        assert recipe.length.tokens is not None
        steps = recipe.length.tokens * epoch / epoch_targets(objective, documents)
    return replace(recipe, train=replace(recipe.train, steps=max(1, math.ceil(steps))))


def epoch_steps(documents: Sequence[Document], batch: int, pool: int) -> float:
    """Return the steps of an epoch: of rows a fraction, since epochs follow without a gap; of others the batches of all pools."""
    if isinstance(documents, TrainingRows):
        return documents.epoch_rows / batch
    pools = (min(pool * batch, len(documents) - start) for start in range(0, len(documents), pool * batch))
    return sum(-(-size // batch) for size in pools)


def epoch_targets(objective: Objective, documents: Sequence[Document]) -> float:
    """Return the number of tokens of an epoch that carry loss."""
    if isinstance(documents, TrainingRows):
        return documents.epoch_targets()
    parts = (documents[i : i + TOGETHER] for i in range(0, len(documents), TOGETHER))
    return sum(targets_in(objective.batch(part)) for part in parts)
