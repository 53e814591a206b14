"""Training of small models in memory: from nothing on shipped sentences, where every model sees the same batches; and of copies."""

import copy
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer

from pellucid import config as c
from pellucid.api.model import Model
from pellucid.errors import UseError
from pellucid.nn.transformer import Decoder
from pellucid.training.corpus import corpora, sentences, train_tokenizer
from pellucid.training.loop import TrainingRun, batches, initialise
from pellucid.training.objectives import Causal, Document
from pellucid.training.recipe import TrainSettings

VOCAB, TEXTS, BATCH, SPREAD = 320, 2000, 16, 0.1
MORE = 2e-3  # learning rate of more training
SEED = 0


@cache
def shipped(count: int, held_out: bool = False) -> tuple[str, ...]:
    """Return the first shipped sentences, of trained forms or of those that no specimen was trained on."""
    return tuple(s.text for s in islice(sentences(corpora()["pellucid/capitals"], held_out, SEED), count))


def shipped_documents(model: Model, count: int, held_out: bool = False) -> list[Document]:
    """Return the first shipped sentences in a model's tokens, each with its end. held_out: see `shipped`."""
    return [Document([], [*model.ids(text), *model.stops[:1]]) for text in shipped(count, held_out)]


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


def objective_of(model: Model) -> Causal:
    """Return the objective of every token in a model's own tokens. A UseError if the model came without a tokenizer.json."""
    if "tokenizer.json" not in model.files:
        raise UseError("train.tokenizer_file", model=model.name)
    return Causal(Tokenizer.from_str(model.files["tokenizer.json"].decode()))


def trained_copy(model: Model, documents: Sequence[Document], s: TrainSettings) -> Model:
    """Return a copy of a model after training on documents in its tokens. Every weight of the copy trains, none of the model."""
    module = copy.deepcopy(model.module).requires_grad_(True)
    run = TrainingRun(module, objective_of(model), documents, s, Path())
    with torch.enable_grad():
        for numbers in numbers_of(run):
            run.one(numbers)
    return Model(model.name, module.requires_grad_(False).eval(), model.family, model.hf, model.tokenizer)


def trained_on(model: Model, steps: int) -> Model:
    """Return a copy of a model after more training on shipped sentences."""
    return trained_copy(model, shipped_documents(model, TEXTS), TrainSettings(SEED, steps, BATCH, MORE, warmup=5, weight_decay=0.0))
