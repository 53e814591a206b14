"""What ends the exchange with a rank that died: each writes a sign of life into torchrun's store, and one line names those that do not.

gloo tells of a rank's death by failing the exchange, but one death in a hundred it misses (torch 2.13, two busy cores); then the SIGTERM
that torchrun sends to the others ends the wait. A rank that computes, and no exchange fails for it, is ended by SIGTERM too.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any

import torch.distributed as dist

from pellucid.errors import RankError
from pellucid.launched import number, started

NAMING = timedelta(seconds=3)  # that a rank waits for signs of the others' life, after one was lost
waiting: list[object] = []
"""The exchange that the main thread is in, as an object of its own; empty outside one."""


@contextmanager
def exchange(by: str = "") -> Iterator[None]:
    """Turn the failure of an exchange into a RankError that names the ranks without a sign of life. by: what the failure has to name."""
    waiting.append(object())
    try:
        yield
    except RuntimeError as fault:
        if by not in str(fault):
            raise
        raise rank_error(lost(), str(fault).split(". ")[0].rpartition("] ")[2]) from None
    finally:
        waiting.pop()


def rank_error(ranks: list[int], reason: str) -> RankError:
    """Return the error of an exchange with ranks that gave no sign of life."""
    return RankError("ranks.lost", ranks=", ".join(map(str, ranks)) or "-", count=started(), reason=reason)


def watch_signals() -> None:
    """Start a thread that receives SIGTERM while the main thread waits in an exchange.

    Python runs a handler between two instructions of the main thread, and gloo's wait is one instruction; a wakeup file has the signal's
    number at once. Only a signal with a handler of Python's is written there, so SIGTERM gets one if it has none.
    """
    if threading.current_thread() is threading.main_thread():
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, left_to_watch)
        signals, written = os.pipe()
        os.set_blocking(written, False)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        threading.Thread(target=watch, args=(signals,), daemon=True).start()


def left_to_watch(number: int, frame: object) -> None:
    """Do nothing on SIGTERM, after which `watch` ends the process: the handler of a command that has none of its own."""


def watch(signals: int) -> None:
    """After each SIGTERM, end this process by one line if it still waits in the same exchange and a rank gives no sign of life.

    Without a handler of the command's own end it in any case, wherever it is. signals: a pipe that has their numbers.
    """
    while number := os.read(signals, 1):
        if number[0] != signal.SIGTERM:
            continue
        before, ends = waiting[-1:], signal.getsignal(signal.SIGTERM) is left_to_watch
        if (ranks := lost()) and (ends or (before and before == waiting[-1:])):
            if speaks():
                print(f"pellucid: {rank_error(ranks, 'SIGTERM')}", file=sys.stderr, flush=True)
            os._exit(RankError.exit_code)
        if ends:
            os._exit(128 + signal.SIGTERM)


def store() -> Any:
    """Return torchrun's own store, which outlives any rank."""
    return dist.TCPStore(  # type: ignore[attr-defined]
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=NAMING
    )


def lost() -> list[int]:
    """Return the ranks that do not say within NAMING that they are alive."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun ends the others at once; the line is printed first
    try:
        signs = store()
        signs.set(f"alive/{number()}", "")
    except RuntimeError:
        return []
    out = list[int]()
    for rank in range(started()):
        try:
            signs.wait([f"alive/{rank}"], NAMING / (1 + len(out)))
        except RuntimeError:
            out.append(rank)
    return out


@cache
def speaks() -> bool:
    """True if this rank is to print an error: the first of all that have one."""
    if started() == 1:
        return True
    try:
        return bool(store().add("errors", 1) == 1)
    except (RuntimeError, KeyError):  # no store, or no address of one
        return True
