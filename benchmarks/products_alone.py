"""The products of matrices in a computation, alone: what bounds it, whatever else it does."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Products(TorchDispatchMode):
    """The products of matrices that torch computes while it is open; called, it computes as many of the same shapes, and nothing else."""

    OPS = {"mm", "addmm", "bmm", "baddbmm"}

    def __init__(self) -> None:
        super().__init__()
        self.drawn: dict[Any, Tensor] = {}
        self.calls: list[tuple[Any, list[Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in self.OPS:
            self.calls.append((func, [self.like(a) if isinstance(a, Tensor) else a for a in args]))
        return func(*args, **(kwargs or {}))

    def like(self, x: Tensor) -> Tensor:
        """Return a random tensor that lies as x does, one for all such."""
        key = x.dtype, x.shape, x.stride()
        if key not in self.drawn:
            self.drawn[key] = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).normal_()
        return self.drawn[key]

    def __call__(self) -> None:
        for func, args in self.calls:
            func(*args)
