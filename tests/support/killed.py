"""A child process that is killed with SIGKILL at one border of the disk."""

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest

APART = "PELLUCID_TEST_APART"


def run_apart(request: pytest.FixtureRequest) -> bool:
    """Run the requesting test in a process of its own, and return True; False there.

    Its children are forks that train. Autograd refuses to run in a fork of a process in which it has started a thread, which depends on the
    tests that ran there before.
    """
    if os.environ.get(APART):
        return False
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", request.node.nodeid]
    done = subprocess.run(command, cwd=request.config.rootpath, env=os.environ | {APART: "1"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return True


def killed(moment: int, borders: list[tuple[Any, str]], work: Callable[[], object]) -> int:
    """Run `work` in a child that is killed before the call number `moment`, from 1, of any of `borders`. Returns its exit status.

    borders: (owner, name) of functions that write, sync, rename or remove a file.
    """
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    count = 0

    def deadly(f: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **how: Any) -> Any:
            nonlocal count
            count += 1
            if count == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return f(*args, **how)

        return called

    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # whose threads the fork has left behind
    done = False
    try:
        for owner, name in borders:
            setattr(owner, name, deadly(getattr(owner, name)))
        work()
        done = True
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0 if done else 1)
