"""What a rank of a training run holds and sends in a step, beside what `count` has of it."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pellucid.counting import Setting, counted
from pellucid.counting.ranks import Split
from pellucid.counting.training_ranks import TrainingGrid, of_rank
from pellucid.distributed import Ranks, number
from pellucid.sharding import split
from pellucid.training.loop import moments_of
from rank_grids import Measured, config
from tiny import tiny
from trained_on_ranks import run_of

KINDS = {
    "all_reduce": "added_up",
    "all_gather_single": "gathered",
    "all_gather_into_tensor": "gathered",
    "reduce_scatter_single": "scattered",
    "reduce_scatter_tensor": "scattered",
}
"""torch's exchanges, of which an older torch has others, by what `count` calls what they send."""
FEW = 4  # numbers of a loss or of a norm, which are no gradients


@contextmanager
def sent_by(ranks: Ranks) -> Iterator[Counter[str]]:
    """Record the bytes that this rank sends of weights and gradients to data ranks inside, by a ring of each group."""
    sent, own = Counter[str](), {name: getattr(dist, name) for name in KINDS if hasattr(dist, name)}

    def recorded(name: str) -> Any:
        def called(*args: Any, **how: Any) -> Any:
            given = [x for x in (*args, *how.values()) if isinstance(x, torch.Tensor)]
            x, group = min(given, key=torch.Tensor.numel), how.get("group")
            if x.is_floating_point() and x.numel() >= FEW and (name != "all_reduce" or group is not ranks.model_group):
                n = dist.get_world_size(group) if isinstance(group, dist.ProcessGroup) else ranks.shard
                sent[KINDS[name]] += 2 * (n - 1) * x.nbytes // n if name == "all_reduce" else (n - 1) * x.nbytes
            return own[name](*args, **how)

        return called

    for name in own:
        setattr(dist, name, recorded(name))
    try:
        yield sent
    finally:
        for name, function in own.items():
            setattr(dist, name, function)


def billed(family: str, ranks: Ranks, root: Path, dtype: str = "float32") -> Measured:
    """Take one step of two forwards on each data rank; return by name what `count` says of a rank, and what this one held and sent."""
    cfg, rows = replace(config(family), vocab=98), 4 * ranks.data
    model = tiny(cfg, torch.float32)
    sharding = split(model, ranks, None if dtype == "float32" else getattr(torch, dtype))
    run = run_of(model, root / f"billed-{family}-{ranks}-{number()}", sharding, batch=rows, micro=2, dtype=dtype)
    with sent_by(ranks) as sent:
        run.one(list(range(rows)))
    of_setting = dict.fromkeys(("weights", "activations", "cache"), "float32")
    bill = counted(cfg, family, family, Setting(context=8, batch=1, **of_setting))
    grid = TrainingGrid(Split(tp=ranks.tensor, experts=ranks.expert), ranks.data, ranks.shard, 2)
    counts = {name: int(n) for name, n in of_rank(bill, grid, narrow=None if dtype == "float32" else 2).items()}
    own_bytes = {
        "weights": sum(p.nbytes for p in run.weights.parameters()),
        "gradients": sum(p.nbytes for p in run.weights.parameters() if p.grad is not None),
        "moments": sum(t.nbytes for t in moments_of(run).values() if t.ndim),
    }
    measured = own_bytes | dict(sent) | ({"sent": sum(sent.values())} if sent else {})
    return {name: [counts.get(name), measured.get(name)] for name in counts | measured}
