"""`pellucid bench` for the page: an open model's prefill and decode steps on this machine, beside their bounds.

One measurement runs at a time, in the worker's thread, so that no other run disturbs it. Its clock raises once the client has disconnected,
which ends it: everything timed reads the clock twice.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pellucid.bench import last_measured
from pellucid.bench.benched_model import check, reach
from pellucid.bench.idle import Watchman
from pellucid.bench.machine_limits import Gauge, block_for
from pellucid.bench.peers import Served
from pellucid.bench.progress_stages import Stages
from pellucid.bench.timing import WARM, against_bounds, decode, prefill
from pellucid.counting import Bill, Setting, counted
from pellucid.counting.bounds import moved
from pellucid.documents import bench as bench_document
from pellucid.errors import RequestError
from pellucid.runs.limits import Limits
from pellucid.runs.model_registry import LoadedModel
from pellucid.runs.worker import Stop

SCHEMA = 1


class Bench:
    """The running measurement, and the latest one of every model."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.running: dict[str, Any] | None = None
        self.latest: dict[str, dict[str, Any]] = {}

    def document(self) -> dict[str, Any]:
        """Return the progress of the running measurement and the latest results as JSON."""
        return {"schema": SCHEMA, "running": self.running, "latest": self.latest}

    @contextmanager
    def taken(self, name: str) -> Iterator[None]:
        """Mark a measurement of the model `name` as running. A RequestError if one is running already."""
        if self.running is not None:
            raise RequestError("server.measuring", 429, "model", model=self.running["model"])
        self.running = {"model": name, "done": 0, "of": 1}
        try:
            yield
        finally:
            self.running = None

    def progress(self, done: int, total: int) -> None:
        """Note that `done` of `total` stages are done."""
        if self.running is not None:
            self.running = self.running | {"done": done, "of": total}

    def run(self, loaded: LoadedModel, context: int, new: int, stop: Stop) -> dict[str, Any]:
        """Measure a model and return the document. context: tokens of the prefill, 0 for the most that stay within the limit of work."""
        if not loaded.has_weights:
            raise RequestError("server.weightless", 400, "model", model=loaded.name)
        if (device := loaded.module.embed.weight.device.type) != "cpu":
            raise RequestError("server.bench.device", 400, "model", found=device)
        bill = self.bill(loaded, context, new)

        def clock() -> float:
            stop.check()
            return time.perf_counter()

        gauge, watchman = Gauge(torch.get_num_threads(), block_for(moved(bill)), clock), Watchman()
        writes = "flops.decode" in bill
        stage = Stages(self.progress, 3 + writes)
        stage(gauge.measure)
        times = [stage(lambda: prefill(loaded.module, bill, clock))]
        times += [stage(lambda: decode(loaded.module, bill, new, clock))] if writes else []
        limits = stage(gauge.measure).limits
        phases = [(t, *against_bounds(bill, t, limits.device)) for t in times]
        measured = bench_document.document(bill, False, phases, limits.device, Served(), watchman.verdict(limits))
        self.latest[loaded.name] = {"schema": bench_document.SCHEMA, "limits": last_measured.document(limits), **measured}
        return self.latest[loaded.name]

    def bill(self, loaded: LoadedModel, context: int, new: int) -> Bill:
        """Count the model for the context. A RequestError if one prefill exceeds the limit of work."""
        dtype = loaded.module.embed.weight.dtype
        spelled = str(dtype).removeprefix("torch.")
        quant = None if loaded.model is None else loaded.model.quant
        most = reach(loaded.config, None, new + WARM)

        def of(n: int) -> Bill:
            check(loaded.name, loaded.config, n, new + WARM, dtype)
            return counted(loaded.config, loaded.name, loaded.family, Setting(n, 1, None, quant or spelled, spelled, spelled))

        bill = of(context or min(most, self.limits.bench_context))
        while not context and bill.setting.context > 1 and int(bill["flops.prefill"]) > self.limits.bench_work:
            bill = of(bill.setting.context // 2)
        if (work := int(bill["flops.prefill"])) > self.limits.bench_work:
            raise RequestError("server.bench.work", 413, "context", context=bill.setting.context, work=work, limit=self.limits.bench_work)
        return bill
