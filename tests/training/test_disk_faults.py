"""A disk that fails at the n-th call: one line names the file, and the run that is resumed then has the bits of one that met no fault.

The calls are those of the process (open, write, fsync, rename, unlink), whatever makes them: Python, or safetensors' own code. The faults
are EIO once, a full disk and a read-only one from the n-th call on, and half of a write that is done. PELLUCID_FULL=1 tries every call:
about a thousand runs of two steps, in memory where the system has such a disk, since the faults are the library's and a sync costs nothing
there.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import pellucid
from covering import FULL
from faulty_disk import FAULTS, LIBRARY, REMOVE, FaultyDisk, compiled
from killed import APART
from pellucid.errors import PellucidError
from pellucid.training import pipeline
from pellucid.training.loop import TrainingRun
from text_runs import recipe_of
from tiny import swapped

PLACES = ("", "lock", "log.jsonl", "data", ".run.json.", "watch", "saves", "saves/.000000002.part", "model")
"""What the quick form lets fail: the first call that changes one of these in a run's folder."""


def preloaded(request: pytest.FixtureRequest, folder: Path) -> bool:
    """Run the requesting test in a process that has the failing disk, and return True; False there."""
    if os.environ.get(APART):
        return False
    if sys.platform != "linux" or (library := compiled(folder)) is None:
        pytest.skip("a library that is loaded first needs Linux and a compiler")
    env = os.environ | {APART: "1", "LD_PRELOAD": str(library), LIBRARY: str(library)}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", request.node.nodeid]
    done = subprocess.run(command, cwd=request.config.rootpath, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return True


def made_by(run: Path, readable: bool = False) -> dict[str, bytes]:
    """The bytes of what a run has made, without clocks and processes. readable: and without what a read-only disk did not let go."""
    every = [path for path in sorted(run.rglob("*")) if path.is_file() and "aside" not in path.parts]
    kept = [path for path in every if path.name not in ("lock", "meter.json") and not path.name.endswith(".part")]
    kept = [path for path in kept if not (readable and path.name.startswith(".tmp"))]  # safetensors' own
    return {str(path.relative_to(run)): re.sub(rb'"seconds": [0-9.e-]+', b"", path.read_bytes()) for path in kept}


@contextmanager
def fast_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder in memory, removed afterwards; `folder` where the system has none."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield folder
        return
    with tempfile.TemporaryDirectory(dir=memory) as name:
        yield Path(name)


class Trials:
    """A run without a fault, and what becomes of it with one."""

    def __init__(self, folder: Path) -> None:
        self.recipe, self.run = recipe_of(folder, steps="2", save_every="1"), folder / "run"
        text = self.recipe.read_text(encoding="utf-8") + '[watch]\nfirst = 1\ntensors = ["logits"]\n'
        self.recipe.write_text(text, encoding="utf-8")
        pellucid.train(self.recipe, self.run)
        self.wanted = made_by(self.run)
        assert {"log.jsonl", "run.json", "data/index.json", "model/model.safetensors"} <= self.wanted.keys()

    def fault(self, disk: FaultyDisk, n: int, place: str = "") -> str | None:
        """Let the n-th call fail that changes a place of the run's folder. Return what is not as promised, None if all is."""
        shutil.rmtree(self.run)
        failed = False
        with disk.failing(self.run / place, n):
            try:
                pellucid.train(self.recipe, self.run)
            except PellucidError as fault:
                failed, line = True, str(fault)
            except Exception as fault:
                return f"{disk.library.failed().decode()}: {type(fault).__name__}: {fault}"
        if not disk.place:
            return f"{place}: no call failed"
        removing = bool(disk.fault.calls & REMOVE)
        last = not failed and removing and disk.calls == n  # what is renamed by then is removed in vain
        if failed == disk.fault.short and not last:
            return f"{disk.place}: {'a short write ends it' if failed else 'nothing says so'}"
        if failed:
            if "\n" in line or str(self.run) not in line:
                return f"{disk.place}: {line}"
            pellucid.train(self.recipe, self.run, resume=True)
        own = made_by(self.run, removing)
        differing = [name for name in own.keys() | self.wanted.keys() if own.get(name) != self.wanted.get(name)]
        return f"{disk.place}: {differing}" if differing else None


@pytest.mark.timeout(0)
def test_at_every_call(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Of the data, the log, the states, a recorded step and the final folder. A log whose later lines stay is seen (a mutant)."""
    if preloaded(request, tmp_path):
        return
    with fast_folder(tmp_path) as folder, swapped(pipeline, "described", lambda *given: "card"):
        trials = Trials(folder)
        for number, kind in enumerate(FAULTS):
            disk = FaultyDisk(kind)
            if FULL:
                shutil.rmtree(trials.run)
                with disk.failing(trials.run, 0):
                    pellucid.train(trials.recipe, trials.run)
                assert disk.calls > 25
                wrong = [trials.fault(disk, n) for n in range(1, disk.calls + 1)]
            else:
                wrong = [trials.fault(disk, 1, place) for i, place in enumerate(PLACES) if (i + number) % 4 == 0]
            assert not any(wrong), [kind, *filter(None, wrong)]
        with swapped(TrainingRun, "unlog", lambda self: None):
            assert "log.jsonl" in (trials.fault(FaultyDisk("ENOSPC"), 1, PLACES[-2]) or "")
