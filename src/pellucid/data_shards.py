"""Weights shared out over data ranks by torch's FSDP2 (arXiv 2304.11277): each rank keeps a part of the rows of every weight, of its
gradient and of its moments, and a block's weights are complete while it runs.

    rows of a weight  0 1 2 3 4  over two ranks    0 1 2 | 3 4
    forward, backward                              all five, gathered before a block runs, dropped after it
    gradient                                       summed over the ranks as it comes, each keeps that of its rows

Inside a block every weight is a plain tensor, so ops and native kernels see what they always see; elsewhere it is a DTensor, and
`sharding.plain` is the one place that takes its part. What stands outside of blocks, a tied table and its head above all, is one group,
which is complete from the forward to the end of the backward pass. What several blocks read, as T5's distances and ALBERT's matrices, is
complete on every rank.
"""

from collections import Counter

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from pellucid.distributed import Ranks


def share_out(model: nn.Module, ranks: Ranks, dtype: torch.dtype | None = None) -> dict[str, int]:
    """Leave a model this rank's rows of its weights, in its place. Returns by path the number of rows of those that are shared out.

    dtype: in which a block computes, by default that of its weights. Gradients are summed in the weights' own.
    """
    blocks, complete = blocks_of(model), read_by_several(model)
    rows = {path: len(p) for path, p in model.named_parameters() if p not in complete and p.ndim}
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=next(model.parameters()).dtype, cast_forward_inputs=False)
    for part in (*blocks, model):
        fully_shard(part, mesh=ranks.mesh, mp_policy=policy, ignored_params=complete)
    for module in model.modules():
        if isinstance(module, FSDPModule):  # gloo's mean is wrong, and the loss is divided by the targets of all ranks
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return rows


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a model."""
    return [m for path, m in model.named_modules() if path.rpartition(".")[0].endswith("layers")]


def read_by_several(model: nn.Module) -> set[nn.Parameter]:
    """Return the parameters that several blocks read, which are complete on every data rank: T5's distances, all of ALBERT's blocks."""
    uses = Counter(p for block in blocks_of(model) for p in set(block.parameters()))
    return {p for p, n in uses.items() if n > 1}
