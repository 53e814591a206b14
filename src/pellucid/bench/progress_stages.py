"""The progress of a measurement whose stages run one after another, each an equal share."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Stages:
    """The stages. show(done, of): called with the progress.  count: their number."""

    def __init__(self, show: Callable[[int, int], None], count: int) -> None:
        self.show, self.count, self.done = show, count, 0
        self.progress(0, 1)

    def progress(self, done: int, total: int) -> None:
        """Report how far the running stage has come."""
        self.show(100 * self.done + 100 * done // total, 100 * self.count)

    def __call__(self, run: Callable[[], T]) -> T:
        out = run()
        self.done += 1
        self.progress(0, 1)
        return out
