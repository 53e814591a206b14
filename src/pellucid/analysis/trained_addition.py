"""A low-rank addition (LoRA) trained on invented facts: which answers it brings, that no weight of the model moves, and its merge."""

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from pellucid.analysis.invented_questions import SEED, asking, fact_documents, plain, questions
from pellucid.analysis.low_rank_addition import attach, drawn, merge
from pellucid.analysis.rows import largest_gap
from pellucid.analysis.small_training import numbers_of, objective_of
from pellucid.api.model import Model
from pellucid.nn.low_rank import thinnable
from pellucid.training.loop import TrainingRun
from pellucid.training.recipe import TrainSettings

RATE = 1e-2  # of A and B; ten times what suits full matrices


@dataclass(frozen=True)
class TrainedAddition:
    """What training additions to every matrix of the blocks did. right: answers before, with the additions, and after their merge.

    numbers, parameters: trained, and of the model.  unchanged: every weight of the model has its bits.  gap: largest difference of a
    logit between the additions beside the weights and merged into them.  of: questions.
    """

    right: tuple[int, int, int]
    of: int
    numbers: int
    parameters: int
    unchanged: bool
    gap: float


def trained_addition(model: Model, rank: int, steps: int) -> TrainedAddition:
    """Train additions of a rank on a copy of a model, all facts in each step, and ask for the facts. The model stays as it is."""
    given = questions("en")
    module = copy.deepcopy(model.module).requires_grad_(False)
    linears = thinnable(module)
    trained: list[nn.Parameter] = []
    for path, layer in linears.items():
        a, b = drawn((rank, layer.in_features), layer.weight), nn.Parameter(layer.weight.new_zeros(layer.out_features, rank))
        a.requires_grad_(True)
        attach(module, path, layer, a, b)
        trained += [a, b]
    own = Model(model.name, module, model.family, model.hf, model.tokenizer)
    objective = objective_of(model)
    settings = TrainSettings(SEED, steps, len(given), RATE, warmup=5, weight_decay=0.0)
    run = TrainingRun(module, objective, fact_documents(model, given), settings, Path())
    with torch.enable_grad():
        for numbers in numbers_of(run):
            run.one(numbers)
    module.requires_grad_(False).eval()
    ids = torch.tensor([model.ids(given[0].prompt)], device=model.device)
    logits, right = own(ids), asking(own, given, plain(given)).right
    weights = dict(module.named_parameters())
    unchanged = all(torch.equal(p, weights[path]) for path, p in model.module.named_parameters())
    for layer in linears.values():
        merge(layer, 1)
    after = asking(own, given, plain(given))
    counts = asking(model, given, plain(given)).right, right, after.right
    return TrainedAddition(
        counts, after.of, sum(p.numel() for p in trained), model.num_parameters(), unchanged, largest_gap(logits, own(ids))
    )
