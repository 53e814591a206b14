"""Campaigns: mutated files by the hundred thousand, each of which must load or be refused in one line that names it.

Others simulate texts on pages, whose every act is compared with a plain model.

    PYTHONPATH=tests/support python -m campaigns safetensors --count 1000000 --seed 1 --workers 2

Attempt i of a seed is always the same mutant, so a failure is repeated by --only i. What may come out of an attempt:

    loaded   refused        as it should be
    foreign                 another exception than a PellucidError, or an error of several lines, or one that names no file
    hang     crash          more than LIMIT seconds of a processor, or PATIENCE of the clock; the process is gone
    forbidden               an event that reading a file may not cause: a process (but for the worker with limits), a connection,
                            a library, pickle, a file written
"""

import importlib
import os
import random
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from pellucid.errors import PellucidError
from pellucid.tokenizer.limited_process import START

os.environ.setdefault("PELLUCID_CACHE", "")  # attempts keep nothing in a home

LIMIT, PATIENCE = 10.0, 120.0  # seconds; on a busy machine only the first means anything
FULL = {
    "safetensors": 1_000_000,
    "gguf": 1_000_000,
    "config": 100_000,
    "trace": 100_000,
    "tokenizer": 20_000,
    "template": 10_000,
    "pages": 20_000,
    "engine": 25_000,
    "requests": 100_000,
    "recipe": 20_000,
    "data": 20_000,
    "kills": 200,
}
FORBIDDEN = {"pickle.find_class", "socket.connect", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "ctypes.dlopen"}
Attempt = Callable[[random.Random], str]


class Campaign(Protocol):
    """A module of this package: prepare(folder) returns the function of one attempt, which returns its fault, or ""."""

    def prepare(self, folder: Path) -> "Attempt": ...


class HangError(BaseException):
    """The end of an attempt that took too long; not an Exception, so that no code under test catches it."""


@dataclass
class Tally:
    """The number of attempts by outcome, and the first few faults."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[dict[str, Any]] = field(default_factory=list)

    def add(self, number: int, outcome: str, detail: str = "") -> None:
        self.outcomes[outcome] += 1
        if outcome not in ("loaded", "refused") and len(self.faults) < 20:
            self.faults.append({"attempt": number, "outcome": outcome, "told": detail[-2000:]})


class Watcher:
    """An audit hook, installed once a process; while `on`, it notes forbidden events. folder: the only place where files may be written."""

    def __init__(self, folder: Path) -> None:
        self.on, self.seen, self.folder = False, list[str](), str(folder)
        sys.addaudithook(self.hear)

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event in FORBIDDEN and not (event == "subprocess.Popen" and START in args[1]):
            self.seen.append(f"{event} {args!r:.200}")
        elif event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            if not isinstance(args[0], int) and not str(args[0]).startswith((self.folder, "/dev/")):  # a number is open already
                self.seen.append(f"open for writing: {args[0]!r:.200}")
        elif event == "import" and str(args[1] or "").startswith(self.folder):
            self.seen.append(f"import {args[1]}")


def campaign(name: str, seed: int, numbers: range, folder: Path, watcher: Watcher | None = None) -> Tally:
    """Run the attempts `numbers` in this process. Returns their tally."""
    module: Campaign = importlib.import_module(f"campaigns.{name}")
    attempt, tally = module.prepare(folder), Tally()
    with impatient():
        for i in numbers:
            tally.add(i, *one(attempt, random.Random(f"{name}:{seed}:{i}"), watcher))
    return tally


@contextmanager
def impatient() -> Iterator[None]:
    """Turn an alarm into a HangError while the context is open."""

    def late(number: int, frame: FrameType | None) -> None:
        raise HangError

    before = {kind: signal.signal(kind, late) for kind in (signal.SIGPROF, signal.SIGALRM)}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def one(attempt: Attempt, draw: random.Random, watcher: Watcher | None) -> tuple[str, str]:
    """Run one attempt. Returns its outcome and a detail of it: the refusal, the fault or the traceback."""
    if watcher is not None:
        watcher.seen.clear()
        watcher.on = True
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        outcome, detail = ("loaded", "") if (fault := attempt(draw)) == "" else ("foreign", fault)
    except PellucidError as refused:
        text = str(refused)
        outcome, detail = ("refused", text) if "\n" not in text and text.isprintable() else ("foreign", f"not one line: {text!r}")
    except HangError:
        outcome, detail = "hang", ""
    except BaseException:
        outcome, detail = "foreign", traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if watcher is not None:
            watcher.on = False
    if watcher is not None and watcher.seen:
        return "forbidden", "; ".join(watcher.seen)
    return outcome, detail


def named(work: Callable[[], object], file: str) -> str:
    """Do the work. Returns a fault for a refusal that does not name `file`, "" if nothing is refused; other refusals are raised."""
    try:
        work()
    except PellucidError as refused:
        if file not in str(refused):
            return f"names no {file}: {refused}"
        raise
    return ""
