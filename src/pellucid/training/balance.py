"""Load balancing without an auxiliary loss: after each step a router's correction moves towards the mean load (arXiv 2408.15664).

correction += rate · sign(mean load - load)        loads 9, 1, 2 (mean 4)  ->  -rate, +rate, +rate
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from pellucid.nn.moe import Moe
from pellucid.tracing import watch
from pellucid.watching.watch import Records


class Balance:
    """The balancing of a model's routers: counts which experts they choose, and corrects them. Does nothing without such routers."""

    def __init__(self, model: nn.Module, rate: float) -> None:
        self.model, self.rate, self.seen = model, rate, Records()
        self.routers = {path: m for path, m in model.named_modules() if isinstance(m, Moe) and m.correction is not None}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record which experts the forward inside chooses."""
        if not self.routers:
            yield
            return
        with watch(self.model, only=[f"{path}.chosen" for path in self.routers]) as self.seen:
            yield

    def correct(self, real: Tensor) -> dict[str, float]:
        """Move every correction by one rate, by the loads of the real rows [B T]; return the fullest expert's excess over the mean."""
        excess = []
        for path, router in self.routers.items():
            chosen: Tensor = self.seen[f"{path}.chosen"].value
            correction = router.correction
            assert correction is not None
            load = torch.bincount(chosen[real].flatten(), minlength=len(correction)).to(correction.dtype)
            correction += self.rate * (load.mean() - load).sign()
            excess.append(float(load.max() / load.mean()) - 1)
        return {"overload": round(max(excess), 4)} if excess else {}
