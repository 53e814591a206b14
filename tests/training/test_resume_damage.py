"""What a resume may never do: begin anew by itself, delete what it has just saved, or lose the log. What it may change in a recipe."""

import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pellucid.checkpoint import disk
from pellucid.errors import TrainError
from pellucid.training import loop, saves
from pellucid.training.loop import TrainingRun
from pellucid.training.saves import newest, save_state, states
from test_resume import DAMAGE, flip
from tiny import swapped
from training import SETTINGS, fresh, log_of, resumed, run_of, silent, state


def stopped_at(folder: Path, step: int, **how: Any) -> TrainingRun:
    """A run that was stopped after a step."""
    run = run_of(folder, **how)
    assert not run.train(silent, lambda: run.step == step)
    return run


def damaged(folder: Path, how: str) -> None:
    """Every state of a run, damaged in one way."""
    for one in states(folder / "saves"):
        DAMAGE[how](one)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a run, by its path."""
    return {f.relative_to(folder).as_posix(): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_resume_without_a_whole_state_refuses(how: str, tmp_path: Path) -> None:
    """One line that says how to begin anew, and nothing on the disk is changed."""
    stopped_at(tmp_path, 6)
    damaged(tmp_path, how)
    before, run = contents(tmp_path), run_of(tmp_path, model=fresh(5))
    first = state(run)
    with pytest.raises(TrainError) as caught:
        run.resume()
    assert caught.value.key == "train.lost" and "--restart" in str(caught.value) and "\n" not in str(caught.value)
    assert contents(tmp_path) == before and state(run) == first and run.step == 0


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.quick(4)
def test_a_restart_keeps_what_was_there_and_what_it_saves(how: str, tmp_path: Path) -> None:
    """Each state that the new run saves stays as long as it is one of the last two; the damaged ones and their log lie aside."""
    stopped_at(tmp_path, 6)
    damaged(tmp_path, how)
    before, run, seen = contents(tmp_path), run_of(tmp_path), list[list[str]]()
    assert len(run.resume(restart=True)) == 2

    def check(entry: dict[str, Any]) -> None:
        seen.append([p.name for p in states(tmp_path / "saves")])

    assert run.train(check) and newest(tmp_path / "saves") == (tmp_path / "saves" / "000000012", {})
    assert [s[-1:] for s in seen] == [[], [], [], *[["000000003"]] * 3, *[["000000006"]] * 3, *[["000000009"]] * 3]
    put_aside = {name.removeprefix("aside/"): raw for name, raw in contents(tmp_path).items() if name.startswith("aside/")}
    assert put_aside == {name.removeprefix("saves/"): raw for name, raw in before.items()}
    assert [e["step"] for e in log_of(run)] == list(range(1, 13))


def by_name(root: Path, step: int, *what: Any) -> Path:
    """As states were once kept: the highest numbers stay, even of damaged states."""
    final = save_state(root / "new" / "saves", step, *what)
    shutil.rmtree(root / final.name, ignore_errors=True)
    os.replace(final, root / final.name)
    for old in states(root)[:-2]:
        shutil.rmtree(old)
    return root / final.name


@pytest.mark.parametrize("mutant", [False, True])
def test_the_state_just_written_is_there(mutant: bool, tmp_path: Path) -> None:
    """Whatever lies beside it: newer, older, damaged, or no state at all; a rule that goes by the number alone deletes it."""
    (tmp_path / "saves" / "000000007.mine").mkdir(parents=True)
    for step in (9, 8, 30):
        save_state(tmp_path / "saves", step, {"w": torch.ones(1)}, {}, {})
    flip(tmp_path / "saves" / "000000030" / "weights.safetensors")
    with swapped(saves, "save_state", by_name if mutant else save_state):
        for step in (2, 3, 4):
            final = saves.save_state(tmp_path / "saves", step, {"w": torch.ones(1)}, {}, {})
            if mutant:
                break
            assert newest(tmp_path / "saves") == (final, {})
    assert final.exists() != mutant
    if not mutant:
        assert sorted(p.name for p in (tmp_path / "saves").iterdir()) == ["000000003", "000000004", "000000007.mine"]
        assert sorted(p.name for p in (tmp_path / "aside").iterdir()) == ["000000008", "000000009", "000000030"]


def test_a_second_damaged_state_of_a_number_has_its_own_place(tmp_path: Path) -> None:
    for _ in range(3):
        stopped_at(tmp_path, 3)
        damaged(tmp_path, "bit")
        run_of(tmp_path).resume(restart=True)
    assert sorted(p.name for p in (tmp_path / "aside").iterdir()) == [
        "000000003", "000000003.2", "000000003.3", "log.jsonl", "log.jsonl.2", "log.jsonl.3"
    ]  # fmt: skip


def test_saves_that_cannot_be_listed_are_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / "saves").write_text("")
    with pytest.raises(TrainError) as caught:
        run_of(tmp_path).resume()
    assert caught.value.key == "file.closed" and "\n" not in str(caught.value)


# The log.


def in_place(path: Path, kept: bytes) -> None:
    """Write a file as it once was: emptied first."""
    with path.open("wb") as f:
        os.fsync(f.fileno())
        f.write(kept)


class InPlace:
    """A rewriting in place: what is written goes to the file itself."""

    def __init__(self, path: Path, error: Any) -> None:
        self.path = path

    def __enter__(self) -> "InPlace":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def write_bytes(self, kept: bytes) -> None:
        in_place(self.path, kept)


def resumed_by_a_child(folder: Path, moment: int, owner: Any = None) -> int:
    """Resume in a child that is killed at this call of fsync or replace; its exit status."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    count, sync, move = 0, os.fsync, os.replace

    def deadly(f: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            nonlocal count
            count += 1
            if count == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return f(*args)

        return called

    try:
        os.fsync, os.replace = deadly(sync), deadly(move)
        if owner is not None:
            loop.replacing = owner
        run_of(folder).resume()
    finally:
        os._exit(0)


@pytest.mark.parametrize("owner", [None, InPlace], ids=["beside", "in place"])
def test_a_kill_loses_no_line_of_the_log(owner: Any, tmp_path: Path) -> None:
    """Killed at every border of the disk, the log is the old one or the new one, whole; rewritten in place it is neither."""
    stopped_at(tmp_path, 7)
    log, uninterrupted, ends = tmp_path / "log.jsonl", b"", set[bytes]()
    shutil.rmtree(tmp_path / "saves" / "000000007")
    uninterrupted = log.read_bytes()
    for moment in range(1, 9):
        log.write_bytes(uninterrupted)
        status = resumed_by_a_child(tmp_path, moment, owner)
        ends.add(log.read_bytes())
        if status == 0:
            break
    assert status == 0 and moment > 1
    allowed = {uninterrupted, b"".join(uninterrupted.splitlines(True)[:6])}
    assert (ends == allowed) == (owner is None)


def test_a_log_that_loses_nothing_is_not_written(tmp_path: Path) -> None:
    stopped_at(tmp_path, 6)
    before = os.stat(tmp_path / "log.jsonl")
    run_of(tmp_path).resume()
    after = os.stat(tmp_path / "log.jsonl")
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@pytest.mark.parametrize("what", ["full", "folder", "pipe", "closed"])
def test_a_log_that_cannot_be_rewritten_is_one_line(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped_at(tmp_path, 7)
    shutil.rmtree(tmp_path / "saves" / "000000007")
    log = tmp_path / "log.jsonl"
    uninterrupted = log.read_bytes()
    if what == "full":

        def full(path: Path) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(disk, "sync", full)
    elif what == "closed":
        monkeypatch.setattr(os, "open", closed(os.open, log))
    else:
        log.unlink()
        log.mkdir() if what == "folder" else os.mkfifo(log)
    with pytest.raises(TrainError) as caught:
        run_of(tmp_path).resume()
    monkeypatch.undo()
    assert "\n" not in str(caught.value) and "log.jsonl" in str(caught.value)
    assert what in ("folder", "pipe") or log.read_bytes() == uninterrupted
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(".part")]


def closed(opened: Callable[..., int], which: Path) -> Callable[..., int]:
    """os.open, to which one file is closed."""

    def open_(path: Any, *rest: Any, **how: Any) -> int:
        if Path(path) == which:
            raise PermissionError(13, "Permission denied")
        return opened(path, *rest, **how)

    return open_


# What may change between a stop and a resume.


def test_how_often_it_is_saved_may_change(tmp_path: Path) -> None:
    uninterrupted = run_of(tmp_path / "whole")
    uninterrupted.train(silent)
    stopped_at(tmp_path / "cut", 5)
    run = resumed(tmp_path / "cut", s=replace(SETTINGS, save_every=1, log_every=4))
    assert state(run) == state(uninterrupted)


def test_more_steps_where_the_rate_stays(tmp_path: Path) -> None:
    """With floor = 1 no step's rate depends on how many there are: more of them end in the bits of a run that was asked for all."""
    level = replace(SETTINGS, floor=1)
    longer = replace(level, steps=17)
    uninterrupted = run_of(tmp_path / "whole", longer)
    uninterrupted.train(silent)
    run_of(tmp_path / "cut", level).train(silent)
    assert state(resumed(tmp_path / "cut", s=longer)) == state(uninterrupted)


@pytest.mark.parametrize(("before", "after"), [(0.1, 20), (1, 7)], ids=["the rate falls", "fewer than were done"])
def test_other_steps_are_refused_by_name(before: float, after: int, tmp_path: Path) -> None:
    s = replace(SETTINGS, floor=before)
    stopped_at(tmp_path, 9, s=s)
    with pytest.raises(TrainError) as caught:
        run_of(tmp_path, replace(s, steps=after)).resume()
    assert caught.value.key == "train.steps"
    assert all(word in str(caught.value) for word in ("train.steps = 12", str(after), "train.floor", "step 9"))


def test_a_stable_state_is_cooled_down_later(tmp_path: Path) -> None:
    """With "wsd" any state before the cooldown belongs to a run of other steps too, and ends in its bits; one of the cooldown does not."""
    long = replace(SETTINGS, schedule="wsd", cooldown=0.25)  # 12 steps, 9 of them stable
    short = replace(long, steps=8)  # 6 of them stable
    run_of(tmp_path / "short", short).train(silent)
    stopped_at(tmp_path / "long", 6, s=long)
    assert state(resumed(tmp_path / "long", s=short)) == state(resumed(tmp_path / "short", s=short))
    with pytest.raises(TrainError, match=r"train.steps = 8"):
        resumed(tmp_path / "short", s=long)
