"""Steps that are not finite: the first broken tensor and its document are named, and steps are skipped, counted and bounded."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from pellucid.errors import NotFiniteError, TrainError
from pellucid.training import criterion, replay
from pellucid.training.balance import Balance
from pellucid.training.criterion import loss_of
from pellucid.training.loop import TrainingRun
from pellucid.training.objectives import Batch
from pellucid.training.saves import newest
from pellucid.training.text_objective import packed_batch
from test_recompute import run_in
from tiny import swapped
from training import DOCUMENTS, SETTINGS, log_of, run_of, silent, state

SKIP = replace(SETTINGS, on_nan="skip", skips=2)
AT = next(i for i, d in enumerate(DOCUMENTS) if 22 in d.target[:-1])
OTHERS = [i for i, d in enumerate(DOCUMENTS) if 22 not in d.target]


@contextmanager
def poisoned(run: TrainingRun, steps: set[int]) -> Iterator[None]:
    """Let the loss of these steps, from 1, be no number."""

    def broken(model: Any, batch: Batch, smoothing: float, share: float) -> Tensor:
        return loss_of(model, batch, smoothing) * (float("nan") if run.step + 1 in steps else 1.0)

    with swapped(criterion, "loss_of", broken):
        yield


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("micro", [None, 2])
def test_the_first_tensor_and_its_document(packed: bool, micro: int | None, tmp_path: Path) -> None:
    """The embedding gives infinite rows for an id that one document has, and all that follows from them is broken."""
    numbers = [*OTHERS[:2], OTHERS[2], AT] if micro else [OTHERS[0], AT, *OTHERS[1:3]]
    run = run_of(tmp_path, replace(SETTINGS, micro=micro))
    if packed:
        vars(run.objective)["batch"] = packed_batch
    run.model.embed.register_forward_hook(lambda module, given, rows: rows.masked_fill((given[0] == 22)[..., None], float("inf")))
    before = state(run)
    with pytest.raises(NotFiniteError) as caught:
        run.one(numbers)
    assert f"step 1: loss is nan; nothing was changed; first: embed, document {AT}" in str(caught.value)
    assert state(run) == before and run.step == 0


def test_the_first_tensor_of_a_gradient(tmp_path: Path) -> None:
    """It is the last one on the way of the forward; of a loss that is broken itself the documents are told."""
    run = run_of(tmp_path)

    def broken(model: Any, batch: Batch, smoothing: float, share: float) -> Tensor:
        logits = model(*batch.inputs)
        return loss_of(model, batch, smoothing) + ((logits[2, 1, 4] - logits[2, 1, 4].detach()) * 1e30 * 1e30)

    with swapped(criterion, "loss_of", broken), pytest.raises(TrainError) as caught:
        run.one([4, 5, 6, 7])
    assert caught.value.key == "train.gradient" and "first: logits, document 6" in str(caught.value)
    with poisoned(run, {1}), pytest.raises(TrainError) as caught:
        run.one([4, 5, 6, 7])
    assert "documents of the batch: 4, 5, 6, 7" in str(caught.value)


def test_skipped_steps_change_nothing_and_go_on(tmp_path: Path) -> None:
    """Two in a row; a run that is resumed between them ends in the same bits."""
    run = run_of(tmp_path / "a", SKIP)
    with poisoned(run, {5, 6, 9}):
        run.train(silent, lambda: run.step == 5)
        before = state(run)
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        again = run_of(tmp_path / "b", SKIP)
        again.resume()
        assert again.skipped == 1 and state(again) == before
        run.train(silent, lambda: run.step == 6)
        assert state(run) == before and run.skipped == 2
        run.train(silent)
    with poisoned(again, {5, 6, 9}):
        again.train(silent)
    log = log_of(run)
    assert [e["step"] for e in log if "skipped" in e] == [5, 6, 9] and [e["step"] for e in log] == [*range(1, 13)]
    assert all(("loss" in e) is ("skipped" not in e) for e in log) and log[4]["tokens"] == log[3]["tokens"]
    assert state(again) == state(run) and log_of(again) == log


def test_too_many_in_a_row(tmp_path: Path) -> None:
    """The third ends the run: the state is that after step 4, and the log of a resumed run ends there."""
    run = run_of(tmp_path, SKIP)
    with poisoned(run, {5, 6, 7}), pytest.raises(TrainError) as caught:
        run.train(silent)
    assert caught.value.key == "train.skips" and "step 7: 2 steps in a row skipped; stopped, state of 4 saved" in str(caught.value)
    kept, _ = newest(tmp_path / "saves")
    assert kept is not None and int(kept.name) == 4
    again = run_of(tmp_path, replace(SKIP, on_nan="stop", skips=0))
    again.resume()
    assert again.step == 4 and [e["step"] for e in log_of(again)] == [1, 2, 3, 4] and state(again) == state(run)
    stricter = run_of(tmp_path, replace(SKIP, skips=1))
    stricter.resume()
    with poisoned(stricter, {5, 6, 7}), pytest.raises(TrainError, match="step 6: 1 step in a row skipped; stopped, state of 4 saved"):
        stricter.train(silent)


def test_experts_of_a_skipped_step_do_not_count(tmp_path: Path) -> None:
    """A correction follows from the steps that were taken; with the loads of a skipped one it is another."""

    def after(forget: Callable[[Any], None] = Balance.forget) -> dict[str, bytes]:
        run = run_in(tmp_path, "deepseek_v3", replace(SKIP, correction=0.1))
        with poisoned(run, {2}), swapped(Balance, "forget", forget):
            for numbers in ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]):
                run.one(numbers)
        return {name: t for name, t in state_of(run).items() if "correction" in name}

    plain = run_in(tmp_path, "deepseek_v3", replace(SKIP, correction=0.1))
    for numbers in ([0, 1, 2, 3], [8, 9, 10, 11]):
        plain.one(numbers)
    wanted = {name: t for name, t in state_of(plain).items() if "correction" in name}
    assert wanted and after() == wanted != after(lambda self: None)


def state_of(run: TrainingRun) -> dict[str, bytes]:
    return {path: t.detach().numpy().tobytes() for path, t in run.weights.changing().items()}


def test_a_replay_skips_what_was_skipped() -> None:
    """A step that was skipped and is not, and the other way round, is another step."""
    log: dict[int, dict[str, Any]] = {1: {"step": 1, "documents": "a", "skipped": "loss"}, 2: {"step": 2, "documents": "b", "loss": 1.0}}
    replay.compare({"step": 1, "documents": "a", "skipped": "loss"}, log)
    for entry in ({"step": 1, "documents": "a", "loss": 1.0}, {"step": 2, "documents": "b", "skipped": "gradient"}):
        with pytest.raises(TrainError, match="skipped"):
            replay.compare(entry, log)
