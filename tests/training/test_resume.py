"""A run that stops, dies or finds its states damaged goes on, and ends in the same bits as one that nothing interrupted.

PELLUCID_FULL=1 kills it at each of the first 36 moments.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from killed import killed, run_apart
from pellucid.checkpoint import disk
from pellucid.checkpoint.safetensors_file import read_tensor
from pellucid.errors import TrainError
from pellucid.nn.transformer import Decoder
from pellucid.training import loop, saves
from pellucid.training.identity import MACHINE
from pellucid.training.objectives import Document, Prefix
from pellucid.training.saves import digest, newest, save_state
from tiny import swapped
from training import CONFIG, DOCUMENTS, SETTINGS, at_step, fresh, log_of, resumed, run_of, silent, state

FULL = bool(os.environ.get("PELLUCID_FULL"))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """A run that nothing interrupts: its last state, and its log."""
    run = run_of(tmp_path_factory.mktemp("whole"))
    assert run.train(silent)
    return state(run), log_of(run)


@pytest.mark.parametrize("at", [1, 3, 4, 6, 9, 11, 12])
def test_resume_is_bit_identical(at: int, tmp_path: Path, uninterrupted: tuple[dict[str, bytes], list[dict[str, Any]]]) -> None:
    """Stopped after any step, at a save or between two, the run goes on as if nothing had been; its log too."""
    first = run_of(tmp_path)
    assert not first.train(silent, lambda: first.step == at)
    with (tmp_path / "log.jsonl").open("a") as f:
        f.write('{"step": 99, "loss": 0}\n{"step": 1')  # what a crash leaves of steps that are lost
    run = resumed(tmp_path)
    assert run.step == 12 and state(run) == uninterrupted[0] and log_of(run) == uninterrupted[1]


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (loop, "batches", lambda documents, s: iter([[i % 21] for i in range(40)])),
        (loop, "learning_rate", lambda step, s: s.learning_rate),
        (saves, "read_tensor", lambda entry: read_tensor(entry) * (1.0 if "exp_avg_sq" not in entry.name else 0.5)),
    ],
)
def test_resume_mutants_are_seen(owner: Any, name: str, value: Any, tmp_path: Path, uninterrupted: tuple[dict[str, bytes], Any]) -> None:
    """Other data after a resume, a forgotten place in the schedule, a moment that changed."""
    first = run_of(tmp_path)
    first.train(silent, lambda: first.step == 6)
    with swapped(owner, name, value):
        assert state(resumed(tmp_path)) != uninterrupted[0]


def test_saving_changes_nothing(tmp_path: Path, uninterrupted: tuple[dict[str, bytes], Any]) -> None:
    for every in (1, 5, 1000):
        run = run_of(tmp_path / str(every), replace(SETTINGS, save_every=every))
        run.train(silent)
        assert state(run) == uninterrupted[0]
        assert sorted(p.name for p in (run.folder / "saves").iterdir())[-1] == "000000012"


BORDERS = [(os, "fsync"), (os, "replace"), (shutil, "rmtree"), (saves, "text"), (saves, "write")]


def test_killed_at_any_moment(tmp_path: Path, uninterrupted: tuple[dict[str, bytes], Any], request: pytest.FixtureRequest) -> None:
    """kill -9 at every border of the disk: a complete state is there once one was, and the resumed run ends in the same bits."""
    if run_apart(request):
        return
    moment, died = 0, 0
    while True:
        moment += 1 if FULL and moment < 36 else 5 if FULL else 9  # in full densely through two saves, then here and there
        folder = tmp_path / str(moment)
        status = killed(moment, BORDERS, lambda: run_of(folder).train(silent))
        assert status in (0, signal.SIGKILL), status
        assert newest(folder / "saves")[0] is not None or moment <= 16, moment
        run = resumed(folder)
        assert state(run) == uninterrupted[0]
        shutil.rmtree(folder)
        died += status != 0
        if status == 0:
            break
    assert died > (30 if FULL else 6)


def test_kill_9_of_a_process(tmp_path: Path, uninterrupted: tuple[dict[str, bytes], Any]) -> None:
    """A real process, killed from outside once it has saved."""
    code = f"""
import sys, time
import torch
torch.set_num_threads(1)
import training as t
from pathlib import Path
t.run_of(Path({str(tmp_path)!r})).train(lambda entry: time.sleep(0.05))
"""
    child = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    try:
        for _ in range(2400):
            if (tmp_path / "saves" / "000000003" / "manifest.json").exists() or child.poll() is not None:
                break
            time.sleep(0.05)
        assert child.poll() is None
    finally:
        child.kill()
    assert child.wait() == -signal.SIGKILL
    run = resumed(tmp_path)
    assert run.step == 12 and state(run) == uninterrupted[0]


# Damage.

DAMAGE: dict[str, Callable[[Path], Any]] = {
    "bit": lambda f: flip(f / "weights.safetensors"),
    "moment": lambda f: flip(f / "moments.safetensors"),
    "state": lambda f: (f / "state.json").write_text((f / "state.json").read_text().replace("9", "8")),
    "cut": lambda f: os.truncate(f / "weights.safetensors", 100),
    "zeros": lambda f: (f / "weights.safetensors").write_bytes(bytes((f / "weights.safetensors").stat().st_size)),
    "gone": lambda f: (f / "moments.safetensors").unlink(),
    "no manifest": lambda f: (f / "manifest.json").unlink(),
    "torn manifest": lambda f: os.truncate(f / "manifest.json", 20),
    "empty manifest": lambda f: (f / "manifest.json").write_text("{}"),
}


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-9] ^= 4
    file.write_bytes(content)


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.quick(4)
def test_damaged_state_is_passed_over(how: str, tmp_path: Path, uninterrupted: tuple[dict[str, bytes], Any]) -> None:
    """The newest state that verifies is where the run goes on; what was wrong is named; the last bits are the same."""
    first = run_of(tmp_path)
    first.train(silent, lambda: first.step == 9)
    DAMAGE[how](tmp_path / "saves" / "000000009")
    run = run_of(tmp_path, model=fresh(5))
    faults = run.resume()
    assert run.step == 6 and len(faults) == 1 and "000000009" in faults[0] and "\n" not in faults[0]
    assert run.train(silent) and state(run) == uninterrupted[0]
    assert newest(tmp_path / "saves")[1] == {}


def test_all_states_damaged(tmp_path: Path, uninterrupted: tuple[dict[str, bytes], Any]) -> None:
    """Then the run begins anew if it is told to, and says what was wrong; a reader without the manifest would go on from damage."""
    first = run_of(tmp_path)
    first.train(silent, lambda: first.step == 6)
    for folder in (tmp_path / "saves").iterdir():
        flip(folder / "weights.safetensors")
    run = run_of(tmp_path)
    assert len(run.resume(restart=True)) == 2 and run.step == 0
    assert run.train(silent) and state(run) == uninterrupted[0]
    flip(tmp_path / "saves" / "000000009" / "weights.safetensors")
    shutil.rmtree(tmp_path / "saves" / "000000012")

    def trusted(path: Path) -> str:
        manifest = path.parent / "manifest.json"
        return json.loads(manifest.read_text())[path.name][0] if manifest.exists() else digest(path)

    with swapped(saves, "digest", trusted):
        assert state(resumed(tmp_path)) != uninterrupted[0]


def test_two_states_are_kept(tmp_path: Path) -> None:
    run = run_of(tmp_path, replace(SETTINGS, save_every=1))
    kept: list[list[str]] = []
    run.train(lambda e: kept.append(sorted(p.name for p in (tmp_path / "saves").glob("*"))))
    assert kept[-1] == ["000000010", "000000011"]
    save_state(tmp_path / "saves", 1_000, {"w": torch.ones(1)}, {}, {})
    assert [p.name for p in sorted((tmp_path / "saves").iterdir())] == ["000000012", "000001000"]


def test_a_full_disk_ends_the_run_cleanly(tmp_path: Path, uninterrupted: tuple[dict[str, bytes], Any]) -> None:
    """At the n-th sync, for all of a save: a TrainError, no half state, the older one is there, and the run can go on."""
    sync, count = disk.sync, 0
    for n in range(1, 9):
        folder = tmp_path / str(n)
        first = run_of(folder)
        assert not first.train(silent, partial(at_step, first, 3))
        count = 0

        def full(path: Path, n: int = n) -> None:
            nonlocal count
            count += 1
            if count == n:
                raise OSError(28, "No space left on device")
            sync(path)

        with pytest.MonkeyPatch.context() as m:
            m.setattr(disk, "sync", full)
            m.setattr(saves, "sync", full)
            with pytest.raises(TrainError, match="No space left"):
                first.train(silent)
        assert {p.name for p in (folder / "saves").iterdir()} <= {"000000003", "000000006"}
        assert newest(folder / "saves")[0] is not None
        assert state(resumed(folder)) == uninterrupted[0]


@pytest.mark.parametrize("what", ["settings", "documents", "objective", "model"])
def test_another_run_is_refused(what: str, tmp_path: Path) -> None:
    """A state belongs to its settings, documents, objective and model; what differs is named, a setting with its values."""
    first = run_of(tmp_path)
    first.train(silent, lambda: first.step == 3)
    changed: dict[str, dict[str, Any]] = {
        "settings": {"s": replace(SETTINGS, learning_rate=2e-2)},
        "documents": {"documents": [Document([], [1, 2, 4]), *DOCUMENTS[1:]]},
        "objective": {"objective": Prefix},
        "model": {"model": Decoder(replace(CONFIG, eps=1e-4))},
    }
    other = run_of(tmp_path, **changed[what])
    before = state(other)
    differences = {"settings": "train.learning_rate (0.01 → 0.02)", "objective": "objective (Causal → Prefix)"}
    for inexact in (False, True):
        with pytest.raises(TrainError) as caught:
            other.resume(inexact=inexact)
        assert caught.value.key == "train.differs" and str(caught.value).endswith(differences.get(what, what)) and state(other) == before


@pytest.mark.parametrize("what", sorted(MACHINE))
def test_a_state_of_another_machine_is_resumed_on_demand(what: str, tmp_path: Path) -> None:
    """Other rounding: refused with both values, or resumed with the same words as a warning."""
    first = run_of(tmp_path)
    first.train(silent, lambda: first.step == 3)
    other = run_of(tmp_path)
    own, other.identity[what] = other.identity[what], "0"
    before = state(other)
    with pytest.raises(TrainError) as caught:
        other.resume()
    assert caught.value.key == "train.machine" and f"{what} ({own} → 0)" in str(caught.value) and state(other) == before
    (warning,) = other.resume(inexact=True)
    assert f"{what} ({own} → 0)" in warning and state(other) == state(first) and other.step == 3
