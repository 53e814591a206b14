"""A run that is stopped after each of its steps ends in the bits of one that never was: any optimizer, schedule, objective and dtype."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from pellucid.nn.transformer import build
from pellucid.training import saves
from pellucid.training.loop import TrainingRun, initialise
from pellucid.training.recipe import TrainSettings
from test_objectives import BLANKED, ROWS, SMALL, made
from tiny import swapped
from training import SETTINGS, at_step, log_of, silent

STEPS = 50 if os.environ.get("PELLUCID_FULL") else 4
GRID = [
    (optimizer, schedule, objective, dtype)
    for optimizer in ("adamw", "muon")
    for schedule in ("cosine", "linear", "constant", "wsd")
    for objective in SMALL
    for dtype in ("float32", "bfloat16")
]


def run_of(folder: Path, s: TrainSettings, objective: str, seed: int = 1) -> TrainingRun:
    """Return a run with forwards of two documents each. seed: of first weights, which must not matter where a state was saved."""
    folder.mkdir(parents=True, exist_ok=True)
    model = build(SMALL[objective])
    initialise(model, 2, 0.1, seed)
    documents = (BLANKED if objective == "masked" else ROWS) * 3
    return TrainingRun(model, made(objective), documents, s, folder)


def ended(run: TrainingRun) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """Return the weights, buffers, masters, moments and log of a run."""
    changed = {f"changed {path}": t.detach().numpy().tobytes() for path, t in run.weights.changing().items()}
    moments = {
        f"{path}:{name}": v.numpy().tobytes() for path, p in run.weights.named_parameters() for name, v in run.optimizer.state[p].items()
    }
    return changed | moments, log_of(run)


def stopped_after_each(folder: Path, s: TrainSettings, objective: str) -> TrainingRun:
    for step in range(1, s.steps):
        run = run_of(folder, s, objective, 1 if step == 1 else 90 + step)
        run.resume()
        assert run.step == step - 1 and not run.train(silent, partial(at_step, run, step))
    run = run_of(folder, s, objective, 99)
    run.resume()
    assert run.train(silent)
    return run


def settings(optimizer: str, schedule: str, dtype: str) -> TrainSettings:
    return replace(SETTINGS, steps=STEPS, micro=2, optimizer=optimizer, schedule=schedule, dtype=dtype, warmup=2, save_every=STEPS)


@pytest.mark.quick(32)
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("optimizer", "schedule", "objective", "dtype"), GRID)
def test_stopped_after_each_step(optimizer: str, schedule: str, objective: str, dtype: str, tmp_path: Path) -> None:
    s = settings(optimizer, schedule, dtype)
    uninterrupted = run_of(tmp_path / "whole", s, objective)
    assert uninterrupted.train(silent)
    assert ended(stopped_after_each(tmp_path / "parts", s, objective)) == ended(uninterrupted)


@pytest.mark.parametrize("lost", ["momentum", "exp_avg"])
def test_a_lost_moment_is_seen(lost: str, tmp_path: Path) -> None:
    """Of Muon's matrices, and of AdamW's other weights."""
    s = settings("muon", "wsd", "float32")
    uninterrupted = run_of(tmp_path / "whole", s, "causal")
    uninterrupted.train(silent)
    read = saves.read_tensor

    def without(entry: Any) -> torch.Tensor:
        return read(entry) * (0.0 if entry.name.endswith(f":{lost}") else 1.0)

    with swapped(saves, "read_tensor", without):
        assert ended(stopped_after_each(tmp_path / "parts", s, "causal")) != ended(uninterrupted)
