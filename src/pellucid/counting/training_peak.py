"""The most memory that a step of training takes at once: its four largest moments, each with what is held then.

at the loss                 what all layers keep, the logits and their gradients
in a layer's backward pass  what the layers up to it keep, the gradients of those after it, and what the ops of this one need
at the table of tokens      all gradients, and where several places read it what each adds to its own
while weights change        all gradients, and what the optimizer needs for the largest weight

What a layer's backward pass needs is seen in one on meta, where storages come and go as on a device, without numbers.
"""

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """The bytes of the storages that ops make, while it is open. now: those alive.  most: at once, since `most` was set last."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.alive: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for made in tree_leaves(out):
            if not isinstance(made, Tensor):
                continue
            storage = made.untyped_storage()
            if storage._cdata not in given and storage._cdata not in self.alive:
                self.alive[storage._cdata] = storage.nbytes()
                self.now += storage.nbytes()
                weakref.finalize(storage, self.freed, storage._cdata)
        self.most = max(self.most, self.now)
        return out

    def freed(self, of: int) -> None:
        self.now -= self.alive.pop(of)


def working(model: nn.Module, forward: Callable[[], Tensor]) -> dict[str, int]:
    """Return, by the path of a layer, the most bytes that its backward pass holds beyond those alive as it begins. forward: to logits."""
    with LiveBytes() as tracker:
        out: dict[str, int] = {}
        running: list[tuple[str, int]] = []  # the layer whose backward pass runs, and the bytes alive as it began

        def end(path: str, _: Tensor) -> None:
            if running and running[0][0] == path:
                out[path] = max(out.get(path, 0), tracker.most - running.pop()[1])

        def begin(path: str, gradient: Tensor) -> None:
            for other, _ in list(running):  # a layer's output is the input of the next one
                end(other, gradient)
            tracker.most = tracker.now
            running.append((path, tracker.now))

        def entered(path: str, m: nn.Module, args: tuple[Any, ...]) -> None:
            if args[0].requires_grad:
                args[0].register_hook(partial(end, path))

        def left(path: str, m: nn.Module, args: tuple[Any, ...], result: Tensor) -> None:
            if result.requires_grad:
                result.register_hook(partial(begin, path))

        handles: list[Any] = []
        for place, m in model.named_modules():
            if place.rpartition(".")[0].endswith("layers"):
                handles += [m.register_forward_pre_hook(partial(entered, place)), m.register_forward_hook(partial(left, place))]
        try:
            with torch.enable_grad():
                logits = forward()
                logits.backward(torch.empty_like(logits))
        finally:
            for h in handles:
                h.remove()
            model.zero_grad()
    return out
