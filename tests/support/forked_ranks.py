"""Ranks that are forks of one process, which has imported everything once: a group of them begins in half a second. Linux alone.

The process that forks must not have differentiated anything, since autograd refuses to run in a fork of its threads.
"""

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable

import torch.distributed as dist

from rank_grids import PATIENCE

Work = Callable[[int, list[int]], object]
"""What a rank does: with its number, and the ids of the ranks before it, which began later."""


def forked(count: int, work: Work, seconds: float = 60) -> list[int]:
    """Run `work` on this many ranks, and return their statuses by rank: the exit code, or the signal's number below zero.

    One that runs longer than `seconds` is killed.
    """
    door = socket.create_server(("127.0.0.1", 0))
    port, pids = door.getsockname()[1], list[int]()
    for rank in reversed(range(count)):  # so that the first, which writes, knows the others
        sys.stdout.flush()
        if not (pid := os.fork()):
            door.close()
            be(rank, count, port, lambda rank=rank: work(rank, pids))  # type: ignore[misc]
        pids.insert(0, pid)
    # After the forks, which would copy locks that the store's thread holds: of 100 groups of four, one waited for such a lock for ever.
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=PATIENCE, master_listen_fd=door.detach()
    )
    out, end = dict[int, int](), time.monotonic() + seconds
    while len(out) < count:
        for rank, pid in enumerate(pids):
            if rank not in out:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    out[rank] = os.waitstatus_to_exitcode(status)
                elif time.monotonic() > end:
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    del store
    return [out[rank] for rank in range(count)]


def be(rank: int, count: int, port: int, work: Callable[[], object]) -> None:
    """Do `work` as a rank that torchrun started, and end: with 1 after a fault, whose last line is told, else 0."""
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    agent = {"TORCHELASTIC_RUN_ID": "forked", "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    os.environ.update({name: str(value) for name, value in (own | agent).items()})
    code = 1
    try:
        work()
        code = 0
    except BaseException as fault:
        print(f"rank {rank}: {type(fault).__name__}: {fault}", file=sys.stderr)
        if not type(fault).__module__.startswith("pellucid"):
            traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
