"""Processes of torchrun for tests: their environment, and a run of them."""

import os
import subprocess
import sys
from pathlib import Path

SUPPORT = Path(__file__).parent


def environment() -> dict[str, str]:
    """Return the environment of a process that imports what this one can."""
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, (SUPPORT.parent, SUPPORT, *sys.path)))}


def torchrun(processes: int, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a script under torchrun, and return it when all processes have ended."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=600, check=False)
