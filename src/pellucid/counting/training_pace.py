"""How fast a step of training can be at best, whether it fits, and what a million tokens cost.

A step takes at least the time of its products at the dense peak of the dtype that multiplies, and of the bytes that each rank must move:
its weights once forward and once backward, the weights that train once more as they are written, gradients and AdamW's numbers read and
written. Activations may stay on the chip.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pellucid.counting.bill import Bill
from pellucid.counting.bounds import Device, TimeBound
from pellucid.counting.number import Number
from pellucid.counting.training_memory import Way, training
from pellucid.counting.training_share import share_of_work


@dataclass(frozen=True)
class TrainingPace(TimeBound):
    """A step of training on a device. rank_bytes: of a rank.  compute, memory: seconds of products, and of bytes moved.

    tokens: of a step, over all ranks.  ranks: that share a model or the state; each that shares the state alone has a batch of its own.
    """

    rank_bytes: int
    fits: bool
    compute: float
    memory: float
    tokens: int
    ranks: int

    @property
    def rate(self) -> float:
        """Tokens a second over all ranks."""
        return self.tokens / self.seconds

    def price(self, hour: float) -> float:
        """Return the cost of a million tokens of training, at `hour` an hour and device."""
        return self.ranks * hour / 3600 / self.rate * 1e6


def training_pace(bill: Bill, way: Way, device: Device, efficiency: float = 1.0, cost: Mapping[str, Number] | None = None) -> TrainingPace:
    """Return the pace of a step on a device. efficiency: the share of the bound that is reached.  cost: that of `training`, if known."""
    cost = training(bill, way) if cost is None else cost
    bytes_of = {name: int(cost[f"memory.{name}"]) if f"memory.{name}" in cost else 0 for name in MOVED}
    trained = "weights" if way.rank is None else "adapters"
    moved = sum(times * bytes_of[name] for name, times in MOVED.items()) + bytes_of[trained]
    peak = device.peak.get(bill.setting.activations) or device.peak["float32"]
    rank_bytes = int(cost["memory.total"])
    return TrainingPace(
        rank_bytes,
        rank_bytes <= device.memory,
        int(cost["flops.total"]) * share_of_work(bill, way.split) / peak / efficiency,
        moved / device.bandwidth / efficiency,
        bill.setting.batch * bill.setting.context * way.shards,
        way.shards * way.split.ranks,
    )


MOVED = {"weights": 2, "adapters": 2, "gradients": 2, "moments": 2, "master": 2}  # how often each is read or written in a step
