"""The processes that torchrun started: a grid of data ranks by ranks that share a model, and what they exchange over torch.distributed.

    torchrun --standalone --nproc-per-node 4 -m pellucid train recipe.toml        [ranks] data = 2  tensor = 2

    rank      0  1  2  3
    data      0  0  1  1      which documents of a step it reads
    tensor    0  1  0  1      which heads, neurons and rows of the vocabulary it holds

With `expert = 2` in the place of `tensor`, or beside it, the same two ranks hold complete experts, half of every layer's. They read the
same tokens, so no token is sent: each runs the rows of its own experts, and the outputs are summed.

    rows of a layer, sorted by expert    0 0 0 1 | 2 3 3 3      rank 0 runs the first four, rank 1 the others

Between ranks of one model a part that is split begins with `shared` and ends with `summed` (arXiv 1909.08053, f and g):

    shared    x → x         backward: the sum of the ranks' gradients, for each rank used x for its heads alone
    summed    x → Σ x       backward: the gradient as it is, which every rank has

All ranks run the same program on the same requests; nothing decides for the others. torchrun starts them, and its store says which of
several ranks prints the one line of an error (`signs_of_life.py`).
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pellucid.errors import UseError
from pellucid.launched import number, started
from pellucid.signs_of_life import exchange, watch_signals

PATIENCE = timedelta(minutes=10)  # that a rank waits for another one in an exchange
PREPARATION = timedelta(days=7)  # that ranks wait while the first one prepares data


@dataclass(frozen=True)
class Ranks:
    """A place in the grid. data, tensor, expert: the sizes of the grid.  data_rank, model_rank: the place.

    expert: 1, or the ranks of a model that hold complete experts; tensor is then as many, or 1, and all but the experts is on every rank.
    shard: the data ranks, next to one another, that have one copy of weights, gradients and moments between them; 1 if each has its own.
    data_group, model_group: the process groups of its column and row, None where it is alone in them.
    shard_group, copies_group: those that share a copy, and those that have the same part of other copies.  mesh: of the first, for torch.
    """

    data: int = 1
    tensor: int = 1
    expert: int = 1
    data_rank: int = 0
    model_rank: int = 0
    data_group: Any = None
    model_group: Any = None
    shard: int = 1
    shard_group: Any = None
    copies_group: Any = None
    mesh: Any = None

    def __str__(self) -> str:
        return grid(self.data, self.tensor, self.expert, self.shard)

    def __deepcopy__(self, memo: object) -> "Ranks":
        return self  # a copied model is on the same ranks

    @property
    def sharing(self) -> int:
        """Return the number of ranks that share the weights of one model."""
        return max(self.tensor, self.expert)

    @property
    def count(self) -> int:
        """Return the number of ranks."""
        return self.data * self.sharing

    @property
    def first(self) -> bool:
        """True for the rank that writes files."""
        return self.data_rank == self.model_rank == 0

    def shared(self, x: Tensor) -> Tensor:
        """Return x, which each rank of a model uses for its own heads, neurons or experts: its gradient is summed over them."""
        return _Shared.apply(x, self) if self.sharing > 1 and differentiated(x) else x

    def summed(self, x: Tensor) -> Tensor:
        """Return the sum of the x of a model's ranks, in its place where no gradient is needed."""
        if self.sharing == 1:
            return x
        if differentiated(x):
            out: Tensor = _Summed.apply(x, self)
            return out
        return self.add_up(x, self.model_group)

    def gathered(self, x: Tensor, axis: int, size: int) -> Tensor:
        """Return the parts of all ranks of a model end to end along an axis of `size` in all, of which the last may be shorter."""
        if self.sharing == 1:
            return x
        return _Gathered.apply(x, axis, size, self) if differentiated(x) else self.gather(x, axis, size)

    def even(self, x: Tensor) -> Tensor:
        """Return a rank's share of what all ranks of a model add once: x over their number."""
        return x if self.sharing == 1 else x / self.sharing

    def of_experts(self) -> "ExpertRanks":
        """Return the same ranks, of a layer whose experts are complete on one rank each."""
        return ExpertRanks(**vars(self))

    def own_rows(self, order: Tensor, token: Tensor, ends: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return of rows that are sorted by expert those that this rank runs, with the end of each expert's: all of them."""
        return order, token, ends

    def bounds(self, size: int) -> tuple[int, int]:
        """Return begin and end of this rank's part of an axis of a model: 97 over 2 are 49 and 48."""
        return bounds_of(size, self.model_rank, self.sharing)

    def row_bounds(self, rows: int) -> tuple[int, int]:
        """Return begin and end of this rank's rows of a weight that is shared out over data ranks."""
        return bounds_of(rows, self.data_rank % self.shard, self.shard)

    def gather(self, x: Tensor, axis: int, size: int) -> Tensor:
        """Gather as `gathered` does, without gradients."""
        return end_to_end(x, axis, size, self.sharing, self.model_group)

    def gather_shards(self, x: Tensor, rows: int) -> Tensor:
        """Return the rows of all ranks that share a weight out, of which this one has its own."""
        return end_to_end(x, 0, rows, self.shard, self.shard_group)

    def gather_rows(self, x: Tensor) -> Tensor:
        """Return the rows of all ranks of a model end to end, of which each rank has another number."""
        counts = torch.zeros(self.sharing, dtype=torch.int64)
        counts[self.model_rank] = len(x)
        counts = self.add_up(counts, self.model_group)
        begin = int(counts[: self.model_rank].sum())
        out = x.new_zeros(int(counts.sum()), *x.shape[1:])
        out[begin : begin + len(x)] = x.detach()
        return self.add_up(out, self.model_group)

    def add_up(self, x: Tensor, group: Any) -> Tensor:
        """Sum x over a group in its place, and return it."""
        with exchange():
            dist.all_reduce(x, group=group)
        return x

    def totals(self, numbers: Sequence[float]) -> list[float]:
        """Return the sums of numbers over the data ranks, in float64."""
        if self.data == 1:
            return list(numbers)
        out: list[float] = self.add_up(torch.tensor(numbers, dtype=torch.float64), self.data_group).tolist()
        return out

    def any(self, flag: bool) -> bool:
        """True if a flag is set on any rank, so that all of them do the same."""
        if self.count == 1:
            return flag
        seen = torch.tensor(int(flag))
        with exchange():
            dist.all_reduce(seen, dist.ReduceOp.MAX)
        return bool(seen)

    def any_beside(self, flag: bool) -> bool:
        """True if a flag is set on any of the ranks that share the weights of a forward with this one, so that none waits in the next."""
        if self.shard > 1:
            flag = bool(self.add_up(torch.tensor(int(flag)), self.shard_group))
        return flag if self.sharing == 1 else bool(self.add_up(torch.tensor(int(flag)), self.model_group))

    def most(self, number: int) -> int:
        """Return the largest number of the ranks that share a copy of the weights."""
        largest = torch.tensor(number)
        if self.shard > 1:
            with exchange():
                dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.shard_group)
        return int(largest)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Let the block compute with weights that are shared out, for which torch exchanges inside of forwards and backward passes."""
        with exchange("gloo") if self.shard > 1 else nullcontext():
            yield

    def alike(self, number: int) -> bool:
        """True if every rank gives the same number, of 62 bits at most."""
        if self.count == 1:
            return True
        ends = torch.tensor([number, -number])
        with exchange():
            dist.all_reduce(ends, dist.ReduceOp.MAX)
        return int(ends[0]) == -int(ends[1])

    def agreed(self, number: int) -> int:
        """Return the first rank's number."""
        if self.count == 1:
            return number
        chosen = torch.tensor(number, dtype=torch.int64)
        with exchange():
            dist.broadcast(chosen, 0)
        return int(chosen)

    def sum_gradients(self, parameters: Iterable[Tensor], group: Any) -> None:
        """Sum the gradients of parameters over a group. A parameter that no rank has a gradient of keeps none."""
        trained = list(parameters)
        seen = self.add_up(torch.tensor([int(p.grad is not None) for p in trained]), group).tolist()
        used = [p for p, n in zip(trained, seen, strict=True) if n]
        for dtype in dict.fromkeys(p.dtype for p in used):
            same = [p for p in used if p.dtype == dtype]
            bucket = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in same])
            for p, grad in zip(same, self.add_up(bucket, group).split([p.numel() for p in same]), strict=True):
                p.grad = grad.view_as(p)

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Run the block on the first rank, then on the others, which find the files that it made; go on when all have."""
        if self.count == 1:
            yield
            return
        if not self.first:
            self.wait()
        yield
        if self.first:
            self.wait()
        self.wait()

    def wait(self) -> None:
        """Wait until every rank is here, however long the first one prepares."""
        with exchange():
            dist.monitored_barrier(timeout=PREPARATION)


class ExpertRanks(Ranks):
    """The ranks of a layer whose experts are complete on one rank each."""

    def even(self, x: Tensor) -> Tensor:
        """Return x: an expert's bias is added on its own rank alone."""
        return x

    def own_rows(self, order: Tensor, token: Tensor, ends: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the rows of this rank's experts."""
        first, last = self.bounds(len(ends))
        begin, end = int(ends[first - 1]) if first else 0, int(ends[last - 1])
        return order[begin:end], token[begin:end], ends[first:last] - begin


ALONE = Ranks()


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.ranks.add_up(grad.clone(memory_format=torch.contiguous_format), ctx.ranks.model_group), None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        return ranks.add_up(x.clone(memory_format=torch.contiguous_format), ranks.model_group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int, size: int, ranks: Ranks) -> Tensor:
        ctx.axis, ctx.bounds = axis, ranks.bounds(size)
        return ranks.gather(x, axis, size)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        begin, end = ctx.bounds
        return grad.narrow(ctx.axis, begin, end - begin), None, None, None


def differentiated(x: Tensor) -> bool:
    """True if a gradient of x will be asked for."""
    return torch.is_grad_enabled() and x.requires_grad


def bounds_of(size: int, rank: int, count: int) -> tuple[int, int]:
    """Return begin and end of a rank's part of `size` over `count`: the last ones have less, or nothing."""
    each = -(-size // count)
    return min(size, rank * each), min(size, (rank + 1) * each)


def end_to_end(x: Tensor, axis: int, size: int, count: int, group: Any) -> Tensor:
    """Return the parts that the `count` ranks of a group have of an axis, end to end, without gradients."""
    each, x = -(-size // count), x.detach().movedim(axis, 0).contiguous()
    padded = torch.cat([x, x.new_zeros(each - len(x), *x.shape[1:])]) if len(x) < each else x
    parts = [torch.empty_like(padded) for _ in range(count)]
    with exchange():
        dist.all_gather(parts, padded, group=group)
    return torch.cat(parts)[:size].movedim(0, axis).contiguous()


def grid(data: int, tensor: int, expert: int, shard: int = 1) -> str:
    """Write the sizes of a grid; expert ranks and shards only where there are any, as the states of older runs have it."""
    rest = {"expert": expert, "shard": shard}
    return f"data={data} tensor={tensor}" + "".join(f" {name}={n}" for name, n in rest.items() if n > 1)


def join(data: int, tensor: int, expert: int = 1, shard: int = 1, patience: timedelta = PATIENCE) -> Ranks:
    """Return this process's place in a grid of all started processes. A UseError if their number is another.

    patience: how long a rank waits for another one in an exchange before the run ends.
    """
    sharing = max(tensor, expert)
    if data * sharing != started():
        raise UseError("ranks.started", grid=grid(data, tensor, expert, shard), needed=data * sharing, started=started())
    if data * sharing == 1:
        return ALONE
    from torch.distributed.device_mesh import init_device_mesh

    with exchange():
        if not dist.is_initialized():
            dist.init_process_group("gloo", timeout=patience)
            watch_signals()
        mesh = init_device_mesh("cpu", (data, sharing), mesh_dim_names=("data", "model"))
        groups = (mesh.get_group("data") if data > 1 else None, mesh.get_group("model") if sharing > 1 else None)
        shards: tuple[Any, ...] = (1, None, None, None)
        if shard > 1:
            mesh = init_device_mesh("cpu", (data // shard, shard, sharing), mesh_dim_names=("copies", "shard", "model"))
            shards = (shard, mesh.get_group("shard"), mesh.get_group("copies") if data > shard else None, mesh["shard"])
    return Ranks(data, tensor, expert, number() // sharing, number() % sharing, *groups, *shards)


def leave(patience: timedelta = PATIENCE) -> None:
    """End the exchanges when every rank is here: a process that ends while its threads listen to another may be aborted.

    patience: of the first rank, which has most to do and is the last to come. The others wait as long as it writes.
    """
    if dist.is_initialized():
        with exchange():
            dist.monitored_barrier(timeout=PREPARATION if number() else patience)
            dist.destroy_process_group()
