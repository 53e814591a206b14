"""/metrics: vLLM's names with the prefix `pellucid:`, by prometheus_client where it is installed (the extra `serve`).

What the engine knows is read when /metrics is; what happens once is counted as it happens.
"""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pellucid.errors import RequestError

if TYPE_CHECKING:
    from pellucid.server.openai.answering import GeneratedAnswer
    from pellucid.server.openai.served_model import ServedModel

PREFIX, LABEL = "pellucid:", "model_name"
SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)  # seconds
LONG = (*SHORT[3:], 30, 60, 120, 300)
COUNTS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
HELP = {  # names, with the same in words: Prometheus asks for it
    name: name.replace("_", " ")
    for name in (
        "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prefix_cache_queries", "prefix_cache_hits",
        "num_preemptions", "prompt_tokens", "generation_tokens", "request_success", "time_to_first_token_seconds",
        "inter_token_latency_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds",
        "request_decode_time_seconds", "iteration_tokens_total", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens",
        "estimated_flops_per_gpu", "estimated_read_bytes_per_gpu",
    )
}  # fmt: skip


class ModelCounters:
    """The counters and histograms of one model, in a registry of their own."""

    def __init__(self, name: str) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram

        self.name, self.registry = name, CollectorRegistry()

        def histogram(kind: str, buckets: Iterable[float]) -> Histogram:
            made = Histogram(PREFIX + kind, HELP[kind], [LABEL], registry=self.registry, buckets=tuple(buckets))
            return made.labels(name)

        def counter(kind: str, *labels: str) -> Counter:
            return Counter(PREFIX + kind, HELP[kind], [LABEL, *labels], registry=self.registry)

        self.prompt, self.generated = counter("prompt_tokens").labels(name), counter("generation_tokens").labels(name)
        self.success = counter("request_success", "finished_reason")
        self.first = histogram("time_to_first_token_seconds", SHORT)
        self.between = histogram("inter_token_latency_seconds", SHORT)
        self.total = histogram("e2e_request_latency_seconds", LONG)
        self.queued = histogram("request_queue_time_seconds", SHORT)
        self.prefill = histogram("request_prefill_time_seconds", SHORT)
        self.decode = histogram("request_decode_time_seconds", LONG)
        self.rows = histogram("iteration_tokens_total", COUNTS)

    @staticmethod
    def of(name: str) -> "ModelCounters | None":
        """Return the counters of a model, None without prometheus_client."""
        try:
            return ModelCounters(name)
        except ImportError:
            return None

    def count(self, answer: "GeneratedAnswer") -> None:
        """Count an answer that has ended, or was left."""
        usage, now = answer.usage(), time.monotonic()
        self.prompt.inc(usage["prompt_tokens"])
        self.generated.inc(usage["completion_tokens"])
        for reason in (answer.finished.get(i, "abort") for i in range(len(answer.choices))):
            self.success.labels(self.name, reason).inc()
        self.total.observe(now - answer.started)
        if answer.first is not None:
            self.first.observe(answer.first)
            self.decode.observe(now - answer.started - answer.first)
        if (began := answer.submitted.began) is not None:
            self.queued.observe(max(0.0, began - answer.started))
            if answer.first is not None:
                self.prefill.observe(max(0.0, answer.started + answer.first - began))


def exposed(models: "Iterable[ServedModel]") -> tuple[bytes, str]:
    """Return the text of /metrics and its content type. A RequestError without prometheus_client."""
    try:
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    except ImportError:
        raise RequestError("serve.prometheus", 501) from None
    registry = CollectorRegistry()
    registry.register(Combined(list(models)))
    return generate_latest(registry), CONTENT_TYPE_LATEST


class Combined:
    """A collector of several models: each family once, with the samples of all."""

    def __init__(self, models: "list[ServedModel]") -> None:
        self.models = models

    def collect(self) -> Iterable[Any]:
        """Yield the families; prometheus_client asks for them."""
        families: dict[str, Any] = {}
        for served in self.models:
            for family in (*read(served), *(served.counters.registry.collect() if served.counters is not None else ())):
                if family.name in families:
                    families[family.name].samples.extend(family.samples)
                else:
                    families[family.name] = family
        return families.values()


def read(served: "ServedModel") -> Iterable[Any]:
    """Yield what a model's engine knows at this moment."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    if served.thread is None:
        return
    engine = served.thread.engine
    storage: Any = engine.storage
    allocators = storage.pages.allocators.values()
    total, free = sum(a.count for a in allocators), sum(len(a.free) + a.idle for a in allocators)
    gauges = {
        "num_requests_running": len(engine.queue.running), "num_requests_waiting": engine.waiting,
        "kv_cache_usage_perc": 1 - free / total if total else 0.0,
    }  # fmt: skip
    counters = {
        "num_preemptions": engine.queue.preempted, "spec_decode_num_draft_tokens": engine.queue.proposed,
        "spec_decode_num_accepted_tokens": engine.queue.accepted,
    }  # fmt: skip
    flops, weights = served.costs
    counters |= {"estimated_flops_per_gpu": flops * served.rows, "estimated_read_bytes_per_gpu": weights * served.steps}
    if storage.cache is not None:
        counters |= {"prefix_cache_queries": storage.cache.looked, "prefix_cache_hits": storage.cache.hits}
    for values, kind in ((gauges, GaugeMetricFamily), (counters, CounterMetricFamily)):
        for name, value in values.items():
            family = kind(PREFIX + name, HELP[name], labels=[LABEL])
            family.add_metric([served.name], value)
            yield family
