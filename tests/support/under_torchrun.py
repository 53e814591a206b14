"""The environment of processes that tests start beside them."""

import os
import sys
from pathlib import Path

SUPPORT = Path(__file__).parent


def environment() -> dict[str, str]:
    """Return the environment of a process that imports what this one can."""
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, (SUPPORT.parent, SUPPORT, *sys.path)))}
