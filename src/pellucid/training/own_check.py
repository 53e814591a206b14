"""A check of answers by a function of the user's own, in a Python file beside the recipe: check = "check.py:score".

    def score(prompt: str, answer: str, right: list[str]) -> float

Its file runs only where `train` is given the recipe that names it. A step that is taken again reads the rewards from the log, so that no
command that opens a run's folder runs code of it.
"""

import importlib.util
import math
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from pellucid.checkpoint.disk import inside, read_whole
from pellucid.errors import PellucidError, TrainError
from pellucid.training.recipe_tables import OWN
from pellucid.training.saves import digest

SOURCE_BYTES = 1 << 24


class OwnCheck:
    """A function `score(prompt, answer, right)` that gives an answer its reward. name: "file.py:function".  path: of the recipe.

    root: the folder that the file lies in.  sha: of the file.
    """

    def __init__(self, name: str, path: Path, root: Path) -> None:
        match = OWN.fullmatch(name)
        assert match is not None
        self.name, self.path, self.function = name, path, match[2]
        try:
            self.file = inside(root, match[1], TrainError)
            read_whole(self.file, SOURCE_BYTES, TrainError)
        except PellucidError as fault:
            raise TrainError("recipe.fault", path=path, reason=f"reward.check: {fault.line()}") from None
        self.sha = digest(self.file)
        self.called: Callable[..., Any] | None = None

    def load(self) -> Callable[..., Any]:
        """Run the file and return its function. A TrainError if the file raises, or has no such function."""
        spec = importlib.util.spec_from_file_location(f"pellucid_check_{self.sha[:8]}", self.file)
        assert spec is not None and spec.loader is not None
        module, before = importlib.util.module_from_spec(spec), sys.dont_write_bytecode
        try:
            sys.dont_write_bytecode = True  # nothing is written beside the user's file
            spec.loader.exec_module(module)
        except Exception as fault:
            raise TrainError("reward.raised", check=self.file, reason=one_line(fault)) from None
        finally:
            sys.dont_write_bytecode = before
        called = getattr(module, self.function, None)
        if not callable(called):
            names = ", ".join(name for name, value in vars(module).items() if callable(value) and not name.startswith("_")) or "-"
            raise TrainError("reward.function", path=self.file, name=self.function, found=names)
        return called  # type: ignore[no-any-return]

    def score(self, prompt: str, answer: str, right: Collection[str], place: tuple[int, int]) -> float:
        """Return the reward of an answer. place: of its prompt in the step and of the answer in its group, from 1, for an error.

        A TrainError if the function raises, or gives no finite number.
        """
        self.called = self.called or self.load()
        at: dict[str, Any] = {"check": self.name, "prompt": place[0], "text": place[1]}
        try:
            given = self.called(prompt, answer, sorted(right))
        except Exception as fault:
            raise TrainError("reward.raised.at", **at, reason=one_line(fault)) from None
        try:
            value = float(given)
        except (TypeError, ValueError, OverflowError):
            value = math.nan
        if isinstance(given, str) or not math.isfinite(value):
            raise TrainError("reward.value", **at, found=" ".join(repr(given).split())[:100])
        return value


def one_line(fault: Exception) -> str:
    """Return an exception of foreign code as one line."""
    return " ".join(f"{type(fault).__name__}: {fault}".split())[:200]
