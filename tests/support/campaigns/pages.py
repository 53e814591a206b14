"""Texts on pages and in the prefix cache. Each attempt is ACTS acts of a world of its own, in two of three under hashes of one bit.

A wrong page, a page too many or too few, a reference too many: every difference from the plain model is a fault. In every other world a
request for too many pages comes last, which must be refused and change nothing.
"""

import random
from pathlib import Path

from campaigns import Attempt
from paged_texts import SHAPES, OneBit, World
from pellucid.engine import prefix_cache

ACTS = 250


def prepare(folder: Path) -> Attempt:
    exact = prefix_cache.edge

    def attempt(draw: random.Random) -> str:
        prefix_cache.edge = OneBit if draw.randrange(3) else exact  # type: ignore[assignment]
        try:
            return played(World(draw.choice(SHAPES), draw.randrange), draw)
        finally:
            prefix_cache.edge = exact

    return attempt


def played(world: World, draw: random.Random) -> str:
    for i in range(ACTS):
        world.act()
        if not i % 10:
            world.check()
    world.check()
    if draw.randrange(2):
        before = world.state()
        try:
            world.pages.reserve("more", world.pages.longest + 1)
        finally:
            assert world.state() == before and "more" not in world.pages.length
    world.close()
    return ""
