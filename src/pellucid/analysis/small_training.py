"""Training of small models from nothing, in memory, on shipped sentences: every model sees the same batches."""

from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path

import torch

from pellucid import config as c
from pellucid.nn.transformer import Decoder
from pellucid.training.corpus import corpora, sentences, train_tokenizer
from pellucid.training.loop import TrainingRun, batches, initialise
from pellucid.training.objectives import Causal, Document
from pellucid.training.recipe import TrainSettings

VOCAB, TEXTS, BATCH, SPREAD = 320, 2000, 16, 0.1
SEED = 0


@cache
def shipped(count: int, held_out: bool = False) -> tuple[str, ...]:
    """Return the first shipped sentences, of trained forms or of those that no specimen was trained on."""
    return tuple(s.text for s in islice(sentences(corpora()["pellucid/capitals"], held_out, SEED), count))


@cache
def corpus() -> tuple[Causal, tuple[Document, ...]]:
    """Return shipped sentences as documents of a small tokenizer."""
    texts = list(shipped(TEXTS))
    objective = Causal(train_tokenizer(texts, VOCAB))
    return objective, tuple(objective.document([*e.ids, objective.end], 0) for e in objective.tokenizer.encode_batch(texts))


def untrained(cfg: c.Config) -> Decoder:
    """Return a config's model with first weights."""
    model = Decoder(cfg)
    initialise(model, len(cfg.layers), SPREAD, SEED)
    return model


def training_run(model: Decoder, steps: int, rate: float, correction: float = 0.0, auxiliary: float = 0.0) -> TrainingRun:
    """Return a model's training on the corpus, before its first step. correction, auxiliary: as in TrainSettings."""
    objective, documents = corpus()
    s = TrainSettings(SEED, steps, BATCH, rate, warmup=5, correction=correction, auxiliary=auxiliary)
    return TrainingRun(model, objective, list(documents), s, Path())


def numbers_of(run: TrainingRun) -> Iterator[list[int]]:
    """Yield the numbers of each step's documents, from the first step to the last."""
    return islice(batches(run.documents, run.s), run.s.steps)


def train(model: Decoder, steps: int, rate: float, correction: float = 0.0, auxiliary: float = 0.0) -> tuple[TrainingRun, list[float]]:
    """Train a model on the corpus, and return the run and each step's loss. correction, auxiliary: as in TrainSettings."""
    run = training_run(model, steps, rate, correction, auxiliary)
    with torch.enable_grad():
        return run, [run.one(numbers)["loss"] for numbers in numbers_of(run)]
