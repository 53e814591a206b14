"""Compiled models run eagerly while they are watched, and are not compiled again afterwards."""

import sys
import threading
from typing import Any

import torch


class Eager:
    """A stance of torch's compiler: compiled models run eagerly while any thread watches.

    The stance is the process's, and watches of several threads end in any order: so the first watch sets it and the last one restores
    it. It does not import torch's compiler, which takes as long as torch itself: without the compiler nothing is compiled.
    """

    def __init__(self) -> None:
        self.watches, self.lock = 0, threading.Lock()
        self.stance: Any = None

    def __enter__(self) -> None:
        with self.lock:
            self.watches += 1
            if self.stance is None and "torch._dynamo" in sys.modules:
                self.stance = torch.compiler.set_stance("force_eager")
                self.stance.__enter__()

    def __exit__(self, *failure: object) -> None:
        with self.lock:
            self.watches -= 1
            if self.watches == 0 and self.stance is not None:
                self.stance.__exit__(None, None, None)
                self.stance = None


EAGER = Eager()
