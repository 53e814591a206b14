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
several ranks prints the one line of an error. gloo tells of a rank's death by failing the exchange, but one death in a hundred it misses
(torch 2.13, two busy cores); then the SIGTERM that torchrun sends to the others ends the wait.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pellucid.errors import RankError, UseError
from pellucid.launched import number, started

PATIENCE = timedelta(minutes=10)  # that a rank waits for another one in an exchange
PREPARATION = timedelta(days=7)  # that ranks wait while the first one prepares data
NAMING = timedelta(seconds=3)  # that a rank waits for signs of the others' life, after one was lost
waiting: list[object] = []
"""The exchange that the main thread is in, as an object of its own; empty outside one."""


@dataclass(frozen=True)
class Ranks:
    """A place in the grid. data, tensor, expert: the sizes of the grid.  data_rank, model_rank: the place.

    expert: 1, or the ranks of a model that hold complete experts; tensor is then as many, or 1, and all but the experts is on every rank.
    data_group, model_group: the process groups of its column and row, None where it is alone in them.
    """

    data: int = 1
    tensor: int = 1
    expert: int = 1
    data_rank: int = 0
    model_rank: int = 0
    data_group: Any = None
    model_group: Any = None

    def __str__(self) -> str:
        return grid(self.data, self.tensor, self.expert)

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

    def own_rows(self, order: Tensor, token: Tensor, ends: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return of rows that are sorted by expert those that this rank runs, with the end of each expert's: all of them."""
        return order, token, ends

    def bounds(self, size: int) -> tuple[int, int]:
        """Return begin and end of this rank's part of an axis of a model: 97 over 2 are 49 and 48."""
        each = -(-size // self.sharing)
        return min(size, self.model_rank * each), min(size, (self.model_rank + 1) * each)

    def gather(self, x: Tensor, axis: int, size: int) -> Tensor:
        """Gather as `gathered` does, without gradients."""
        each, x = -(-size // self.sharing), x.detach().movedim(axis, 0).contiguous()
        padded = torch.cat([x, x.new_zeros(each - len(x), *x.shape[1:])]) if len(x) < each else x
        parts = [torch.empty_like(padded) for _ in range(self.sharing)]
        with exchange():
            dist.all_gather(parts, padded, group=self.model_group)
        return torch.cat(parts)[:size].movedim(0, axis).contiguous()

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

    def any_of_model(self, flag: bool) -> bool:
        """True if a flag is set on any of the ranks that share a model with this one."""
        return flag if self.sharing == 1 else bool(self.add_up(torch.tensor(int(flag)), self.model_group))

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


def grid(data: int, tensor: int, expert: int) -> str:
    """Write the sizes of a grid; expert ranks only where there are any, as the states of older runs have it."""
    return f"data={data} tensor={tensor}" + (f" expert={expert}" if expert > 1 else "")


def join(data: int, tensor: int, expert: int = 1, patience: timedelta = PATIENCE) -> Ranks:
    """Return this process's place in a grid of all started processes. A UseError if their number is another.

    patience: how long a rank waits for another one in an exchange before the run ends.
    """
    sharing = max(tensor, expert)
    if data * sharing != started():
        raise UseError("ranks.started", grid=grid(data, tensor, expert), needed=data * sharing, started=started())
    if data * sharing == 1:
        return ALONE
    from torch.distributed.device_mesh import init_device_mesh

    with exchange():
        if not dist.is_initialized():
            dist.init_process_group("gloo", timeout=patience)
            watch_signals()
        mesh = init_device_mesh("cpu", (data, sharing), mesh_dim_names=("data", "model"))
    groups = (mesh.get_group("data") if data > 1 else None, mesh.get_group("model") if sharing > 1 else None)
    return Ranks(data, tensor, expert, number() // sharing, number() % sharing, *groups)


def leave() -> None:
    """End the exchanges when every rank is here: a process that ends while its threads listen to another may be aborted."""
    if dist.is_initialized():
        with exchange():
            dist.monitored_barrier(timeout=PREPARATION)
            dist.destroy_process_group()


@contextmanager
def exchange() -> Iterator[None]:
    """Turn the failure of an exchange into a RankError that names the ranks without a sign of life."""
    waiting.append(object())
    try:
        yield
    except RuntimeError as fault:
        raise rank_error(lost(), str(fault).split(". ")[0].rpartition("] ")[2]) from None
    finally:
        waiting.pop()


def rank_error(ranks: list[int], reason: str) -> RankError:
    """Return the error of an exchange with ranks that gave no sign of life."""
    return RankError("ranks.lost", ranks=", ".join(map(str, ranks)) or "-", count=started(), reason=reason)


def watch_signals() -> None:
    """Start a thread that receives SIGTERM while the main thread waits in an exchange.

    Python runs a handler between two instructions of the main thread, and gloo's wait is one instruction; a wakeup file has the signal's
    number at once. Only a signal with a handler of Python's is written there.
    """
    if threading.current_thread() is threading.main_thread():
        signals, written = os.pipe()
        os.set_blocking(written, False)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        threading.Thread(target=watch, args=(signals,), daemon=True).start()


def watch(signals: int) -> None:
    """After each SIGTERM, end this process by one line if it still waits in the same exchange and a rank gives no sign of life.

    signals: a pipe that has their numbers.
    """
    while number := os.read(signals, 1):
        if number[0] != signal.SIGTERM:
            continue
        before = waiting[-1:]
        if (ranks := lost()) and before and before == waiting[-1:]:
            if speaks():
                print(f"pellucid: {rank_error(ranks, 'SIGTERM')}", file=sys.stderr, flush=True)
            os._exit(RankError.exit_code)


def store() -> Any:
    """Return torchrun's own store, which outlives any rank."""
    return dist.TCPStore(  # type: ignore[attr-defined]
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=NAMING
    )


def lost() -> list[int]:
    """Return the ranks that do not say within NAMING that they are alive."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun ends the others at once; the line is printed first
    try:
        signs = store()
        signs.set(f"alive/{number()}", "")
    except RuntimeError:
        return []
    out = list[int]()
    for rank in range(started()):
        try:
            signs.wait([f"alive/{rank}"], NAMING / (1 + len(out)))
        except RuntimeError:
            out.append(rank)
    return out


@cache
def speaks() -> bool:
    """True if this rank is to print an error: the first of all that have one."""
    if started() == 1:
        return True
    try:
        return bool(store().add("errors", 1) == 1)
    except (RuntimeError, KeyError):  # no store, or no address of one
        return True
