"""The limits of this machine: bytes read from memory a second, and FLOP of a matrix product a second.

A bound must not be beaten by what it bounds, so the limit is the best of some repetitions; their median tells how steady it was.

    a block of the size of what a step reads: weights that stay in a processor's cache are read from there, and faster
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

import torch
from torch import Tensor

from pellucid import huge_pages, ops
from pellucid.bench.machine import cpu, memory
from pellucid.counting.bounds import Device
from pellucid.ops import native

Clock = Callable[[], float]  # seconds
RUNS = 7
BLOCK = 256 << 20  # bytes: more than a processor keeps beside it
SMALLEST, LARGEST = 1 << 20, 512 << 20
BLOCKS = tuple(n << 20 for n in (1, 4, 16, 64, 256))  # bytes: a step reads as fast as the largest of these that it fills
ENOUGH = 0.5  # seconds: a product that a processor has no instruction for takes this once, and is as steady then
A_RUN = 64 << 20  # bytes: a small block is read over and over, so that a run is long enough to be timed
SHAPES = ((512, 1024, 1024), (512, 768, 3072))  # rows, in, out
DTYPES = ("float32", "bfloat16", "int8")


@dataclass(frozen=True)
class Rate:
    """An amount a second: the best of some runs, and their median."""

    median: float
    best: float

    @staticmethod
    def of(rates: list[float]) -> "Rate":
        return Rate(statistics.median(rates), max(rates))


@dataclass(frozen=True)
class MachineLimits:
    """read: bytes a second by the number of threads.  product: FLOP a second by dtype, with all `threads`.  block: bytes that were read.

    memory in bytes, 0 where the system does not tell.  blocks: the best rate by the size of what is read, where more than one was.
    """

    cpu: str
    memory: int
    threads: int
    block: int
    read: dict[int, Rate]
    product: dict[str, Rate]
    torch: str
    kernels: str | None
    date: str
    blocks: dict[int, float] = field(default_factory=dict)

    @property
    def device(self) -> Device:
        """The machine as a device to count for."""
        return self.reading(self.block)

    def reading(self, size: float) -> Device:
        """Return the machine at the rate of a step that reads this number of bytes: few bytes stay in the cache and are read faster."""
        rates = {self.block: max(rate.best for rate in self.read.values())} | self.blocks
        block = max((n for n in rates if n <= size), default=min(rates))
        peak = {dtype: rate.best for dtype, rate in self.product.items()}
        read = f"{block / 2**20:g} MiB read at a time"
        source = f"pellucid bench, torch {self.torch}, threads: {self.threads}, {read}, {self.date}"
        return Device(self.cpu, self.memory, rates[block], peak, source)


@dataclass
class Gauge:
    """A gauge that measures repeatedly, such as before and after a run; `limits` are over all measurements.

    block: bytes to read.  blocks: other sizes to read as well.
    """

    threads: int
    block: int = BLOCK
    clock: Clock = time.perf_counter
    blocks: tuple[int, ...] = ()
    reads: dict[int, dict[int, list[float]]] = field(default_factory=dict)  # by size, by threads
    products: dict[str, dict[tuple[int, ...], list[float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.block = min(max(self.block, SMALLEST), LARGEST) // SMALLEST * SMALLEST

    def measure(self, runs: int = RUNS) -> "Gauge":
        """Measure everything `runs` times, and return self."""
        for size in dict.fromkeys((self.block, *self.blocks)):
            block = huge_pages.empty((size // 4,), torch.get_default_dtype()).fill_(1.0)
            for threads in sorted({1, self.threads}):
                with threaded(threads):
                    rates = self.reads.setdefault(size, {}).setdefault(threads, [])
                    rates.extend(reading(block, self.clock) for _ in range(runs))
        with threaded(self.threads), torch.no_grad():
            for dtype in DTYPES:
                for shape in SHAPES:
                    run, rates = product(dtype, *shape), self.products.setdefault(dtype, {}).setdefault(shape, [])
                    run()
                    rates += (2.0 * shape[0] * shape[1] * shape[2] / t for t in times_of(run, self.clock, runs))
        return self

    @property
    def limits(self) -> MachineLimits:
        """The limits so far; of a product's shapes, the one that the machine is best at."""
        read = {threads: Rate.of(rates) for threads, rates in self.reads[self.block].items()}
        blocks = {size: max(map(max, by.values())) for size, by in sorted(self.reads.items())} if self.blocks else {}
        best = {dtype: max((Rate.of(r) for r in by.values()), key=lambda r: r.best) for dtype, by in self.products.items()}
        date = datetime.now(UTC).isoformat(timespec="seconds")
        return MachineLimits(
            cpu(), memory() or 0, self.threads, self.block, read, best, torch.__version__, native.instructions(), date, blocks
        )


def block_for(size: float) -> int:
    """Return the size of the block to time for a step that reads this number of bytes."""
    return max((n for n in BLOCKS if n <= size), default=SMALLEST)


@contextmanager
def threaded(threads: int) -> Iterator[None]:
    """Run the body with this number of torch threads, then restore the number from before."""
    outer = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(outer)


def timed(run: Callable[[], object], clock: Clock = time.perf_counter) -> float:
    """Return the seconds of one run."""
    began = clock()
    run()
    return clock() - began


def times_of(run: Callable[[], object], clock: Clock, runs: int) -> Iterator[float]:
    """Yield the seconds of each of `runs` runs, or of fewer that took ENOUGH together."""
    total = 0.0
    for _ in range(runs):
        total += (seconds := timed(run, clock))
        yield seconds
        if total >= ENOUGH:
            return


def reading(block: Tensor, clock: Clock = time.perf_counter) -> float:
    """Return the bytes a second of reading a tensor with all threads of the kernels, or of torch if there are no kernels.

    The kernels read it in two ways, since some processors read more at eight places at once: the faster counts.
    """
    read: list[Callable[[Tensor], object]] = [native.stream, partial(native.stream, streams=8)] if native.available() else [torch.sum]
    again = max(1, A_RUN // block.nbytes)

    def seconds(way: Callable[[Tensor], object]) -> float:
        return timed(lambda: [way(block) for _ in range(again)], clock)

    return again * block.nbytes / min(map(seconds, read))


def product(dtype: str, rows: int, inner: int, outer: int) -> Callable[[], object]:
    """Return a function that runs the product of [rows in] and a weight [out in] as models do."""
    if dtype == "int8":
        x, weight = (torch.ones(n, inner, dtype=torch.int8) for n in (rows, outer))
        return lambda: torch._int_mm(x, weight.T)
    x, weight = (torch.ones(n, inner, dtype=getattr(torch, dtype)) for n in (rows, outer))
    return lambda: ops.linear(x, weight)
