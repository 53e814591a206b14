"""Compiled models run eagerly while they are watched, and are not compiled again afterwards."""

import sys
import threading
from typing import Any

import torch


class Eager:
    """A stance of torch's compiler: compiled models run eagerly while any thread watches.

    The stance belongs to the process, and two watches of two threads need not end in the order in which they began: so the first
    sets it and the last restores it. Until torch's compiler is imported, which takes as long as torch itself, nothing is compiled.
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
