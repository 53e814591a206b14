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
from pellucid.training.loop import Differentiated, TrainingRun, moments_of
from pellucid.training.objectives import Document
from rank_grids import Measured, config
from tiny import tiny
from trained_on_ranks import Change, run_of

KINDS = {
    "all_reduce": "added_up",
    "all_gather": "logits",
    "all_gather_single": "gathered",
    "all_gather_into_tensor": "gathered",
    "reduce_scatter_single": "scattered",
    "reduce_scatter_tensor": "scattered",
}
"""torch's exchanges, of which an older torch has others, by what `count` calls what they send."""
FEW = 4  # numbers of a loss or of a norm, which are no gradients
LENGTH = 9  # of each document


@contextmanager
def sent_by(ranks: Ranks, run: TrainingRun) -> Iterator[Counter[str]]:
    """Record the bytes that this rank sends in a step, by a ring of each group: to data ranks, and to those that share a model with it."""
    update, updating = run.update, list[bool]()

    def updated(given: Differentiated) -> dict[str, Any]:
        updating.append(True)
        return update(given)

    run.update = updated  # type: ignore[method-assign]
    sent, own = Counter[str](), {name: getattr(dist, name) for name in KINDS if hasattr(dist, name)}

    def recorded(name: str) -> Any:
        def called(*args: Any, **how: Any) -> Any:
            given = [x for x in (*args, *how.values()) if isinstance(x, torch.Tensor)]
            x, group = min(given, key=torch.Tensor.numel), how.get("group")
            if x.is_floating_point() and x.numel() >= FEW:
                n = dist.get_world_size(group) if isinstance(group, dist.ProcessGroup) else ranks.shard
                kind = in_a_model(x) if name == "all_reduce" and group is ranks.model_group else KINDS[name]
                kind = "matrices" if kind == "logits" and updating else kind
                sent[kind] += 2 * (n - 1) * x.nbytes // n if name == "all_reduce" else (n - 1) * x.nbytes
            return own[name](*args, **how)

        return called

    for name in own:
        setattr(dist, name, recorded(name))
    try:
        yield sent
    finally:
        for name, function in own.items():
            setattr(dist, name, function)


def in_a_model(x: torch.Tensor) -> str:
    """Return what `count` calls a sum over the ranks of a model: in a backward pass, of gradients after it, which are one row, or else."""
    if torch._C._current_graph_task_id() != -1:  # type: ignore[attr-defined]
        return "shared"
    return "partial" if x.ndim == 1 else "summed"


def billed(
    family: str,
    ranks: Ranks,
    root: Path,
    dtype: str = "float32",
    recompute: bool = False,
    change: Change | None = None,
    optimizer: str = "adamw",
) -> Measured:
    """Take one step of two forwards on each data rank; return by name what `count` says of a rank, and what this one held and sent.

    recompute: of blocks, whose second forward lies in the backward pass, so that both are one number.  change: makes a mutant.
    """
    cfg, rows = replace(config(family), vocab=98), 4 * ranks.data
    model = tiny(cfg, torch.float32)
    sharding = split(model, ranks, None if dtype == "float32" else getattr(torch, dtype))
    sharding = sharding if change is None else change(model, sharding)
    how: Any = {"batch": rows, "micro": 2, "dtype": dtype, "recompute": recompute, "optimizer": optimizer}
    run = run_of(model, root / f"billed-{family}-{ranks}-{number()}", sharding, **how)
    run.documents = [Document([], [1 + i % 90] * LENGTH) for i in range(rows)]
    with sent_by(ranks, run) as sent:
        run.one(list(range(rows)))
    of_setting = dict.fromkeys(("weights", "activations", "cache"), "float32")
    bill = counted(cfg, family, family, Setting(context=run.batches(list(range(rows)))[0].inputs[0].numel() // 2, batch=2, **of_setting))
    grid = TrainingGrid(Split(tp=ranks.tensor, experts=ranks.expert), ranks.data, ranks.shard, 2, recompute, optimizer == "muon")
    counts = {name: int(n) for name, n in of_rank(bill, grid, narrow=None if dtype == "float32" else 2).items()}
    own_bytes = {
        "weights": sum(p.nbytes for p in run.weights.parameters()),
        "gradients": sum(p.nbytes for p in run.weights.parameters() if p.grad is not None),
        "moments": sum(t.nbytes for t in moments_of(run).values() if t.ndim),
    }
    measured = own_bytes | dict(sent) | ({"sent": sum(sent.values())} if sent else {})
    if recompute:
        for of_one in (counts, measured):
            of_one["both"] = of_one.pop("summed", 0) + of_one.pop("shared", 0)
    return {name: [counts.get(name), measured.get(name)] for name in counts | measured}
