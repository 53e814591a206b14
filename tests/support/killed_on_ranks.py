"""What the tests of states measure on several ranks: one of them killed at a border of the disk, a state opened on fewer and fewer, and
the command in float64.
"""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from forked_ranks import forked
from pellucid import distributed, signs_of_life
from pellucid.commands import main
from pellucid.distributed import join, number
from pellucid.sharding import split
from pellucid.training import loop, saves
from pellucid.training.loop import TrainingRun
from pellucid.training.saves import newest
from rank_grids import FULL, PATIENCE, Measured, config
from text_runs import recipe_of
from tiny import far, tiny
from trained_on_ranks import run_of
from training import silent

BORDERS: list[tuple[Any, str]] = [(os, "fsync"), (os, "replace"), (shutil, "rmtree"), (saves, "text"), (saves, "write")]
"""What the first rank calls to write, sync, rename or remove a file."""
STEPS = 2
FILES = ("weights.safetensors", "moments.safetensors")
Sizes = tuple[int, int, int]


def shared_run(folder: Path, sizes: Sizes, seed: int = 0, **how: Any) -> TrainingRun:
    """Return the run of a tiny model in float32 on the ranks of this grid."""
    ranks = join(*sizes, patience=PATIENCE)
    model = tiny(config("llama"), torch.float32, seed=seed)
    return run_of(model, folder, split(model, ranks), **{"steps": STEPS, "save_every": 1, "keep": None} | how)


def trained(folder: Path, sizes: Sizes, resume: bool = False, forgets: bool = False) -> None:
    """Train to the last step, from the newest state if `resume`. forgets: the second rank takes no moments from that."""
    run = shared_run(folder, sizes, seed=7 if resume and newest(folder / "saves")[0] else 0)
    if forgets and number() == 1:
        read = loop.read_state
        loop.read_state = lambda folder: (read(folder)[0], {}, read(folder)[2])
    if resume:
        run.resume()
    assert run.train(silent)
    distributed.leave()


def deadly(moment: int, victim: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what makes a function of a border send SIGKILL to a process before the call number `moment`, from 1, of all of them."""
    count = 0

    def changed(f: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **how: Any) -> Any:
            nonlocal count
            count += 1
            if count == moment:
                os.kill(victim, signal.SIGKILL)
            return f(*args, **how)

        return called

    return changed


def killed(folder: Path, sizes: Sizes, moment: int, victim: int) -> list[int]:
    """Train on two ranks, of which `victim` is killed when the first one is at this border. Returns their statuses."""

    def work(rank: int, later: list[int]) -> None:
        signs_of_life.NAMING = timedelta(seconds=0.3)
        if rank == 0:
            wrap = deadly(moment, os.getpid() if victim == 0 else later[0])
            for owner, name in BORDERS:
                setattr(owner, name, wrap(getattr(owner, name)))
        trained(folder, sizes)

    return forked(2, work)


def contents(folder: Path) -> list[bytes]:
    """Return the bytes of a state's tensors."""
    return [(folder / name).read_bytes() for name in FILES]


def kills(root: Path) -> Measured:
    """Kill either rank at borders of the disk, at each of them in a full run, and take the run up again on both.

    wrong: the moments after which no complete state was there though one had been, or one was another than that of the run without a
    kill; ends: after which the run ended in other bits; survivors: the statuses of the rank that was not killed; forgetful: whether a
    second rank without the moments of its part ends in other bits.
    """
    out: Measured = {}
    for name, sizes in {"data=2 tensor=1": (2, 1, 1), "data=1 tensor=2": (1, 2, 1)}.items():
        unharmed = root / f"unharmed-{name}"
        assert forked(2, lambda rank, _, to=unharmed, sizes=sizes: trained(to, sizes)) == [0, 0]  # type: ignore[misc]
        right = {state.name: contents(state) for state in (unharmed / "saves").iterdir()}
        for victim in (0, 1) if FULL else (int(sizes[0] == 2),):
            got: Measured = {"killed": 0, "wrong": [], "ends": [], "survivors": []}
            for moment in range(1, 100) if FULL else (12 if sizes[0] == 2 else 22,):
                folder = root / f"{name}-{victim}-{moment}"
                statuses = killed(folder, sizes, moment, victim)
                if statuses == [0, 0]:
                    break
                got["killed"] += statuses[victim] == -signal.SIGKILL
                got["survivors"].append(statuses[1 - victim])
                state = newest(folder / "saves")[0]
                if contents(state) != right[state.name] if state else moment > 20:
                    got["wrong"].append(moment)
                again = forked(2, lambda rank, _, to=folder, sizes=sizes: trained(to, sizes, True))  # type: ignore[misc]
                last = folder / "saves" / f"{STEPS:09d}"
                if again != [0, 0] or contents(last) != right[last.name]:
                    got["ends"].append((moment, again))
                shutil.rmtree(folder)
            out[f"{name} {victim}"] = got
    shutil.rmtree(last := unharmed / "saves" / f"{STEPS:09d}")
    assert forked(2, lambda rank, _: trained(unharmed, (1, 2, 1), True, True)) == [0, 0]
    return out | {"forgetful": contents(last) != right[last.name]}


def narrowing(root: Path) -> Measured:
    """Save a state on four ranks, open and save it on two, then on one. Returns the digests of the three states' tensors.

    damaged: of one that the two ranks changed by a bit before they saved it.
    """

    def copied(run: TrainingRun, before: Path, change: float = 0.0) -> None:
        run.load(before, inexact=True)
        if change:
            with torch.no_grad():
                next(run.weights.parameters()).flatten()[:1].mul_(1 + change)
        (run.folder / "log.jsonl").touch()
        run.save()

    def four(rank: int, _: list[int]) -> None:
        assert shared_run(root / "4", (2, 2, 1), save_every=STEPS).train(silent)
        distributed.leave()

    def two(rank: int, _: list[int], change: float = 0.0) -> None:
        copied(shared_run(root / f"2 {change}", (1, 2, 1), seed=7), root / "4" / "saves" / f"{STEPS:09d}", change)
        distributed.leave()

    statuses = forked(4, four) + forked(2, two) + forked(2, lambda rank, later: two(rank, later, 1e-6))
    alone = lambda rank, _: copied(shared_run(root / "1", (1, 1, 1), seed=8), root / "2 0.0" / "saves" / f"{STEPS:09d}")  # noqa: E731
    statuses += forked(1, alone)
    digests = {
        name: [saves.digest(root / name / "saves" / f"{STEPS:09d}" / file) for file in FILES] for name in ("4", "2 0.0", "1", "2 1e-06")
    }
    return {"statuses": statuses, "states": [digests[name] for name in ("4", "2 0.0", "1")], "damaged": digests["2 1e-06"]}


def clearing(root: Path) -> Measured:
    """Begin again in a folder that has a log and no state; either rank takes its time after it has looked for the log, the second more.

    Returns the statuses where the first rank alone moves it, and where each does.
    """

    def looked(path: Path, exists: Callable[[Path], bool] = Path.exists) -> bool:
        there = exists(path)
        if path.name == "log.jsonl" and path.parent.name != "aside":
            time.sleep(0.25 + 0.5 * number())
        return there

    def each(run: TrainingRun, paths: Iterable[Path]) -> None:
        run.ranks.wait()
        for path in paths:
            if path.exists():
                saves.set_aside(run.folder, path)

    def work(rank: int, folder: Path, alone: bool) -> None:
        Path.exists = looked  # type: ignore[assignment, method-assign]
        if not alone:
            TrainingRun.clear = each  # type: ignore[method-assign]
        trained(folder, (1, 2, 1), True)

    out: Measured = {}
    for alone in (True, False):
        (folder := root / f"cleared-{alone}").mkdir()
        (folder / "log.jsonl").write_text('{"step": 1}\n')
        out["alone" if alone else "each"] = forked(2, lambda rank, _, to=folder, alone=alone: work(rank, to, alone))  # type: ignore[misc]
        assert (folder / "aside" / "log.jsonl").read_text() == '{"step": 1}\n'
    return out


def computing(root: Path) -> Measured:
    """Send SIGTERM, as torchrun does, to a rank in no exchange: after the other one was killed, and to both. Returns the statuses."""

    def work(rank: int, later: list[int], dies: bool) -> None:
        signs_of_life.NAMING = timedelta(seconds=0.3)
        join(1, 2, patience=PATIENCE)
        if rank == 1:
            (root / "joined").touch()
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
        while not (root / "joined").exists():
            time.sleep(0.01)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(20)

    out: Measured = {}
    for dies in (True, False):
        out["killed" if dies else "ended"] = forked(2, lambda rank, later, dies=dies: work(rank, later, dies))  # type: ignore[misc]
        (root / "joined").unlink()
    return out


def leaving(root: Path) -> Measured:
    """Let the second rank be stopped before it leaves. Returns the first one's status, and the second one's, which is killed at last."""

    def work(rank: int, later: list[int]) -> None:
        signs_of_life.NAMING = timedelta(seconds=0.3)
        join(1, 2, patience=PATIENCE)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        try:
            distributed.leave(timedelta(seconds=1))
        finally:
            os.kill(later[0], signal.SIGKILL)

    return {"statuses": forked(2, work)}


def command(root: Path) -> Measured:
    """Run `train` in float64 on 2 x 2 ranks and on one, and go on there from a state of the four. Returns how far they are apart."""
    recipe = recipe_of(root, train__dtype='"float64"', train__clip="0.5", steps="4", batch="5", save_every="2")

    def train(out: str, processes: int, *options: str) -> list[int]:
        given = ["-q", "train", str(recipe), "--out", str(root / out), *options]

        def work(rank: int, _: list[int]) -> None:
            assert main(given) == 0

        return forked(processes, work)

    statuses = train("one", 1) + train("four", 4, *(f"--set=ranks.{name}=2" for name in ("data", "tensor")))
    shutil.copytree(root / "four", root / "again")
    shutil.rmtree(root / "again" / "saves" / "000000004")
    statuses += train("again", 1, "--allow-inexact")
    logs = {out: [json.loads(line) for line in (root / out / "log.jsonl").read_text().splitlines()] for out in ("one", "four", "again")}
    ends = {out: load_file(root / out / "saves" / "000000004" / FILES[0]) for out in logs}
    return {
        "statuses": statuses,
        "steps": [len(log) for log in logs.values()],
        "curve": max(abs(a[k] - b[k]) for out in logs for a, b in zip(logs["one"], logs[out], strict=True) for k in ("loss", "gradient")),
        "clipped": min(entry["gradient"] for entry in logs["one"]),
        "weights": max(far(t, end[path]) for end in ends.values() for path, t in ends["one"].items()),
        "dtypes": sorted({str(t.dtype) for t in ends["four"].values()}),
    }


def measure(folder: Path) -> None:
    """Measure all of these, and write them as JSON."""
    measured = {part.__name__: part(folder) for part in (kills, narrowing, clearing, computing, leaving, command)}
    (folder / "measured.json").write_text(json.dumps(measured))
