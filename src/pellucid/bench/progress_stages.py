"""How far a measurement has come: what is measured one after another, each the same share of the whole."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Stages:
    """show: is told what is done, and of how much.  count: how many there are."""

    def __init__(self, show: Callable[[int, int], None], count: int) -> None:
        self.show, self.count, self.done = show, count, 0
        self.progress(0, 1)

    def progress(self, done: int, total: int) -> None:
        """How far the running one has come."""
        self.show(100 * self.done + 100 * done // total, 100 * self.count)

    def __call__(self, run: Callable[[], T]) -> T:
        out = run()
        self.done += 1
        self.progress(0, 1)
        return out
