"""Load balancing: a correction that moves after each step towards the mean load, or an auxiliary loss.

correction += rate · sign(mean load - load)        loads 9, 1, 2 (mean 4)  ->  -rate, +rate, +rate      (arXiv 2408.15664)
loss += auxiliary · E · Σ share of the load · mean affinity, over all routers                          (arXiv 2101.03961, eq. 4)
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from pellucid.distributed import ALONE, Ranks
from pellucid.nn.moe import Moe
from pellucid.tracing import watch
from pellucid.training.recipe import TrainSettings
from pellucid.watching.records import Records


class Balance:
    """The balancing of a model's routers: counts which experts they choose, and corrects them. Does nothing without such routers.

    rate: by how much a correction moves.  auxiliary: the factor of the auxiliary loss, 0 for none.
    """

    def __init__(self, model: nn.Module, rate: float, auxiliary: float = 0.0) -> None:
        self.model, self.rate, self.auxiliary, self.seen = model, rate, auxiliary, Records()
        experts = mixtures(model)
        self.routers = {path: m for path, m in experts.items() if m.correction is not None}
        self.loads = {path: torch.zeros(m.router.weight.shape[0], dtype=torch.long) for path, m in self.routers.items()}
        self.penalised = list(experts) if auxiliary else []

    @contextmanager
    def counting(self, real: Callable[[str], Tensor]) -> Iterator[None]:
        """Count which experts the forward inside chooses for the real rows; for an auxiliary loss keep their affinities.

        real: from a router's path to which of its rows are, [B T].
        """
        names = {f"{path}.chosen": None for path in (*self.routers, *self.penalised)}
        if not names:
            yield
            return
        names.update(dict.fromkeys(f"{path}.affinity" for path in self.penalised))
        with watch(self.model, only=names, grad=bool(self.penalised)) as self.seen:
            yield
        for path, load in self.loads.items():
            chosen = of_all_rows(self.seen, f"{path}.chosen")
            load += torch.bincount(chosen[real(path)].flatten(), minlength=len(load)).to(load.device)

    def loss(self, real: Callable[[str], Tensor]) -> Tensor | float:
        """Return the auxiliary loss of the last forward's real rows: its factor for each even router, more for an uneven one."""
        return sum((self.auxiliary * unevenness(self.seen, path, real(path)) for path in self.penalised), 0.0)

    def forget(self) -> None:
        """Drop the loads of a step that is skipped."""
        for load in self.loads.values():
            load.zero_()

    def correct(self, ranks: Ranks = ALONE) -> dict[str, float]:
        """Move every correction by one rate, by the loads on all data ranks, and count them anew; return the fullest expert's excess over
        the mean.
        """
        excess = []
        for path, router in self.routers.items():
            correction = router.correction
            assert correction is not None
            if ranks.data > 1:
                ranks.add_up(self.loads[path], ranks.data_group)
            load = self.loads[path].to(correction)
            correction += self.rate * (load.mean() - load).sign()
            excess.append(float(load.max() / load.mean()) - 1)
            self.loads[path].zero_()
        return {"overload": round(max(excess), 4)} if excess else {}


def balance_of(model: nn.Module, s: TrainSettings) -> Balance:
    """Return the balancing of a model's routers; where they do not train, their corrections stay as well."""
    frozen = not all(p.requires_grad for p in model.parameters())
    return Balance(model, 0.0 if frozen else s.correction, s.auxiliary)


def mixtures(model: nn.Module) -> dict[str, Moe]:
    """Return a model's layers of experts by path."""
    return {path: m for path, m in model.named_modules() if isinstance(m, Moe)}


def of_all_rows(seen: Records, path: str) -> Tensor:
    """Return the rows of a recorded tensor, [B T ...]; of packed documents each one has a record, in their order."""
    return torch.cat([s.value for s in seen.all(path)], 1)


def unevenness(seen: Records, path: str, real: Tensor) -> Tensor:
    """Return E · Σ f·p of a router: f, each expert's share of the choices; p, its mean affinity among a token's. 1 if either is even."""
    affinity, chosen = of_all_rows(seen, f"{path}.affinity")[real], of_all_rows(seen, f"{path}.chosen")[real]
    experts = affinity.shape[-1]
    load = torch.bincount(chosen.flatten(), minlength=experts).to(affinity.dtype) / chosen.numel()
    out: Tensor = experts * (load * (affinity / affinity.sum(-1, keepdim=True)).mean(0)).sum()
    return out
