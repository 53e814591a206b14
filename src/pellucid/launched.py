"""How many processes torchrun started, and which one this is. Without torchrun it is the only one."""

import os


def started() -> int:
    """Return the number of processes that torchrun started, 1 without it."""
    return int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def number() -> int:
    """Return this process's number among them, from 0."""
    return int(os.environ["RANK"]) if started() > 1 else 0
