"""What `pellucid bench` measures, of a model that is open: its prefill and its decode steps on this machine, beside their bounds.

One measurement goes at a time, in the thread in which models run, so that nothing else of ours runs beside it. Its clock is where it ends
when the client has disconnected: whatever is timed asks the clock twice.
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
    """The measurement that goes on, and the newest one of every model."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.running: dict[str, Any] | None = None
        self.latest: dict[str, dict[str, Any]] = {}

    def document(self) -> dict[str, Any]:
        """How far the running one has come, and what the last ones found."""
        return {"schema": SCHEMA, "running": self.running, "latest": self.latest}

    @contextmanager
    def taken(self, name: str) -> Iterator[None]:
        """Refuse a second one while one goes on."""
        if self.running is not None:
            raise RequestError("server.measuring", 429, "model", model=self.running["model"])
        self.running = {"model": name, "done": 0, "of": 1}
        try:
            yield
        finally:
            self.running = None

    def tell(self, done: int, whole: int) -> None:
        if self.running is not None:
            self.running = self.running | {"done": done, "of": whole}

    def run(self, loaded: LoadedModel, context: int, new: int, stop: Stop) -> dict[str, Any]:
        """A measurement. context: tokens read before, 0 for as many as are quick."""
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
        stage = Stages(self.tell, 3 + writes)
        stage(gauge.measure)
        times = [stage(lambda: prefill(loaded.module, bill, clock))]
        times += [stage(lambda: decode(loaded.module, bill, new, clock))] if writes else []
        limits = stage(gauge.measure).limits
        phases = [(t, *against_bounds(bill, t, limits.device)) for t in times]
        measured = bench_document.document(bill, False, phases, limits.device, Served(), watchman.verdict(limits))
        self.latest[loaded.name] = {"schema": bench_document.SCHEMA, "limits": last_measured.document(limits), **measured}
        return self.latest[loaded.name]

    def bill(self, loaded: LoadedModel, context: int, new: int) -> Bill:
        """The model's bill for the context, refused where one prefill is more than the limit allows."""
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
