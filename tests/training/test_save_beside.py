"""Saves beside the steps: the state of the step where it began, in order, whole at every moment, and a fault is not lost."""

import os
import shutil
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pellucid
from killed import killed, run_apart
from pellucid.counting.training_memory import training
from pellucid.documents.recipe_bill import recipe_bill
from pellucid.errors import TrainError
from pellucid.training import loop, run_recipe, save_thread, saves
from pellucid.training.loop import TrainingRun
from pellucid.training.save_thread import SaveThread
from pellucid.training.saves import newest, save_state
from text_runs import recipe_of
from tiny import swapped
from training import SETTINGS, log_of, resumed, run_of, silent, state, unmeasured

BESIDE = replace(SETTINGS, save_beside=True)
FULL = bool(os.environ.get("PELLUCID_FULL"))


def files(run: TrainingRun) -> dict[str, bytes]:
    """Return the tensors of each state that is kept."""
    return {str(p.relative_to(run.folder)): p.read_bytes() for p in sorted((run.folder / "saves").rglob("*.safetensors"))}


def slowly(run: TrainingRun) -> Any:
    """Return a `save_state` that begins once two more steps are taken, or the last one."""

    def late(root: Path, step: int, *rest: Any) -> Path:
        while run.step < min(step + 2, run.s.steps) and threading.current_thread() is not threading.main_thread():
            pass
        return save_state(root, step, *rest)

    return late


def test_a_state_is_that_of_its_step(tmp_path: Path) -> None:
    """Also where it is written two steps later; without a copy it would be a later one's."""
    plain = run_of(tmp_path / "plain")
    plain.train(silent)
    for copies, same in ((SaveThread.copied, True), (lambda self, kind, tensors: dict(tensors), False)):
        run = run_of(tmp_path / str(same), BESIDE)
        with swapped(loop, "save_state", slowly(run)), swapped(SaveThread, "copied", copies):
            assert run.train(silent)
        assert state(run) == state(plain) and log_of(run) == log_of(plain)
        assert (files(run) == files(plain)) is same


def test_states_come_in_order(tmp_path: Path) -> None:
    """The next save waits for the last one, so one is written at a time, and all are there when the run ends."""
    at_once, most, order = 0, 0, list[int]()

    def counted(root: Path, step: int, *rest: Any) -> Path:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        made = save_state(root, step, *rest)
        order.append(step)
        at_once -= 1
        return made

    run = run_of(tmp_path, replace(BESIDE, save_every=1))
    with swapped(loop, "save_state", counted):
        run.train(silent)
    assert order == list(range(1, 13)) and most == 1
    assert newest(tmp_path / "saves") == (tmp_path / "saves" / "000000012", {})


@pytest.mark.parametrize("at", [3, 12])
def test_a_fault_ends_the_run(at: int, tmp_path: Path) -> None:
    """Of the last save too; a run that goes on ends in the same bits."""

    def full(root: Path, step: int, *rest: Any) -> Path:
        if step == at:
            raise TrainError("train.save", path=root, reason="No space left on device")
        return save_state(root, step, *rest)

    run = run_of(tmp_path / "run", BESIDE)
    with swapped(loop, "save_state", full), pytest.raises(TrainError, match="No space left"):
        run.train(silent)
    assert run.step == min(at + 3, 12)
    uninterrupted = run_of(tmp_path / "whole")
    uninterrupted.train(silent)
    assert state(resumed(tmp_path / "run", s=BESIDE)) == state(uninterrupted)


def test_another_fault_is_not_hidden(tmp_path: Path) -> None:
    """Of a step, while a save fails too: the step's is raised."""
    thread = SaveThread()

    def broken(step: Any) -> None:
        with thread:
            thread.start(lambda: 1 / 0)
            step()

    with pytest.raises(KeyError):
        broken(lambda: {}["step"])
    with pytest.raises(ZeroDivisionError):
        broken(lambda: None)
    thread.wait()


BORDERS = [(os, "fsync"), (os, "replace"), (shutil, "rmtree"), (saves, "text"), (saves, "write")]


def test_killed_at_any_moment(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """kill -9 at each border of the disk, while steps are taken: once a state is whole one always is, and the run ends in the same bits."""
    if run_apart(request):
        return
    uninterrupted = run_of(tmp_path / "whole")
    uninterrupted.train(silent)
    moment, died = 0, 0
    while True:
        moment += 1 if FULL else 20
        folder = tmp_path / str(moment)
        status = killed(moment, BORDERS, lambda: run_of(folder, BESIDE).train(silent))
        assert status in (0, signal.SIGKILL), status
        assert newest(folder / "saves")[0] is not None or moment <= 16, moment
        assert state(resumed(folder, s=BESIDE)) == state(uninterrupted)
        shutil.rmtree(folder)
        died += status != 0
        if status == 0:
            break
    assert died > (30 if FULL else 2)


def test_the_bill_has_the_copy(tmp_path: Path) -> None:
    """float32 weights and their moments, of as many ids as the table has at most."""
    sizes = list[int]()

    def start(self: SaveThread, save: Any) -> None:
        sizes.append(sum(t.numel() * t.element_size() for name, t in self.copies.items() if not name.endswith(":step")))
        begin(self, save)

    begin = SaveThread.start
    path = recipe_of(tmp_path, steps="1", train__save_beside="true", train__dtype='"bfloat16"')
    with swapped(save_thread.SaveThread, "start", start), unmeasured():
        run_recipe(path, tmp_path / "run", False, 1, silent)
    bill = recipe_bill(path)
    numbers = training(bill.bill, bill.way)
    ids = bill.bill.config.vocab - pellucid.Run(tmp_path / "run").model(0).config.vocab
    assert int(numbers["memory.copy"]) - 12 * ids * bill.bill.config.width == sizes[0]
    assert int(numbers["memory.at_update"]) > int(numbers["memory.copy"]) + int(numbers["memory.moments"])
