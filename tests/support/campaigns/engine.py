"""Lives of the engine, some 400 operations each: requests that come, are cancelled and put off, over pages that are too few.

What a text reads is compared with what it is, what it becomes with what it is alone; at the end no page is left behind. At the end every
other engine is asked for what it cannot do, which must be refused and change nothing.
"""

import random
from pathlib import Path

from campaigns import Attempt
from lives import lived
from pellucid.engine.requests import Request


def prepare(folder: Path) -> Attempt:
    return attempt


def attempt(draw: random.Random) -> str:
    life = lived(draw)
    if said := life.wrong():
        return said
    if draw.randrange(2):
        life.engine.submit(Request((0,) * (life.engine.capacity + 1)))
    return ""
