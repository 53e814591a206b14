"""A tiny run of training: its model, settings and documents, its state and its log."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from pellucid import config as c
from pellucid.checkpoint.fill import targets
from pellucid.errors import TrainError
from pellucid.nn.transformer import Decoder
from pellucid.training import pipeline, run_recipe
from pellucid.training.corpus import CORPORA, train_tokenizer
from pellucid.training.loop import TrainingRun, initialise
from pellucid.training.objectives import Causal, Document, Objective
from pellucid.training.recipe import TrainSettings
from pellucid.training.saves import newest
from pellucid.training.why import Why
from tiny import swapped

ROOT = Path(__file__).parents[2]
CONFIG = c.Config(
    23, 16, (c.Layer(c.Attention(2, 2, 8, bias=True, out_bias=True), c.Mlp(32, "gelu_tanh", False, True)),), True, 1e-5, "layer", 16
)  # fmt: skip
SETTINGS = TrainSettings(seed=3, steps=12, batch=4, learning_rate=1e-2, warmup=3, save_every=3, log_every=1, pool=2)
DOCUMENTS = [Document([], [(7 * i + j * j) % 23 for j in range(2 + i % 9)]) for i in range(21)]
WORDS = train_tokenizer(["a b c"], 300)


def fresh(seed: int = 1, dtype: torch.dtype = torch.float32) -> Decoder:
    """Return a tiny model with its first weights."""
    model = Decoder(CONFIG)
    initialise(model, 1, 0.3, seed)
    return model.to(dtype)


def run_of(
    folder: Path,
    s: TrainSettings = SETTINGS,
    documents: list[Document] = DOCUMENTS,
    model: Decoder | None = None,
    objective: type[Objective] = Causal,
) -> TrainingRun:
    folder.mkdir(parents=True, exist_ok=True)
    return TrainingRun(model or fresh(), objective(WORDS), documents, s, folder)


def corpus_of(folder: Path, *countries: str) -> Path:
    """Write the corpus that ships, of these countries alone; the first has a neighbour in any case."""
    shipped = CORPORA / "capitals"
    facts = json.loads((shipped / "facts.json").read_text(encoding="utf-8"))["countries"]
    kept = {name: facts[name] for name in countries}
    for entry in kept.values():
        entry["neighbours"] = [n for n in entry["neighbours"] if n in kept]
    kept[countries[0]]["neighbours"] = kept[countries[0]]["neighbours"] or [countries[1]]
    folder.mkdir(parents=True)
    (folder / "facts.json").write_text(json.dumps({"countries": kept}), encoding="utf-8")
    for name in ("forms.json", "translations.json"):
        shutil.copy(shipped / name, folder)
    return folder


@contextmanager
def unmeasured() -> Iterator[None]:
    """Let no model be measured and written at the end of a run, which takes longer than the steps of a tiny one."""
    with swapped(pipeline, "finish", lambda recipe, folder, *rest: folder):
        yield


def at_step(run: TrainingRun, step: int) -> bool:
    """True if the run is to stop at `step`."""
    return run.step == step


def silent(entry: dict[str, Any]) -> None:
    """Print no progress."""


def state(run: TrainingRun) -> dict[str, bytes]:
    """Return every weight, buffer and moment, as bytes."""
    tensors = {path: t.detach() for path, t in targets(run.model).items()}
    for path, p in run.model.named_parameters():
        tensors |= {f"{path}:{k}": v for k, v in run.optimizer.state[p].items()}
    return {name: v.numpy().tobytes() for name, v in tensors.items()}


def log_of(run: TrainingRun) -> list[dict[str, Any]]:
    """Return the log without its clock."""
    lines = (run.folder / "log.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def resumed(folder: Path, **how: Any) -> TrainingRun:
    """Resume a run in a folder as a new process does: with other first weights, which must not matter where a state was saved."""
    run = run_of(folder, model=fresh(99 if newest(folder / "saves")[0] else 1), **how)
    run.resume()
    run.train(silent)
    return run


def stopped_after_each_step(recipe: Path, out: Path, steps: int, between: Callable[[], object] = lambda: None) -> Path:
    """Train by a recipe that is stopped by SIGTERM after each of its steps and resumed, and return what it made.

    between: is called before each resumption.
    """

    def interrupt(entry: dict[str, Any]) -> None:
        if "step" in entry and entry["step"] < steps:
            os.kill(os.getpid(), signal.SIGTERM)

    for step in range(1, steps):
        with pytest.raises(TrainError, match=f"step {step}"):
            run_recipe(recipe, out, step > 1, 1, interrupt)
        between()
    return run_recipe(recipe, out, True, 1, silent)


def moved_as_said(run: pellucid.Run, path: str, cell: tuple[int, ...], step: int) -> Why:
    """Return why a weight moved in a step: its tokens add up to autograd's gradient, and its parts to the move."""
    why, before = run.why(path, cell, step), run.model(step - 1).module.get_parameter(path)[cell].item()
    assert why.uses and abs(why.rest) < 1e-6 and why.move is not None
    assert abs(run.model(step).module.get_parameter(path)[cell].item() - before - why.move.total()) < 1e-6
    return why
