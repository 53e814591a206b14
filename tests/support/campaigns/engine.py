"""Simulations of the engine, some 400 operations each: requests that come, are cancelled and preempted, over pages that are too few.

The rows that a text reads are compared with its tokens, its answer with the text alone; at the end no page is left behind. In every other
attempt a request that is too long comes last, which must be refused.
"""

import random
from pathlib import Path

from campaigns import Attempt
from pellucid.engine.requests import Request
from simulate import run_simulation


def prepare(folder: Path) -> Attempt:
    return attempt


def attempt(draw: random.Random) -> str:
    simulation = run_simulation(draw)
    if faults := simulation.faults():
        return faults
    if draw.randrange(2):
        simulation.engine.submit(Request((0,) * (simulation.engine.capacity + 1)))
    return ""
