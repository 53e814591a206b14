"""What the page's requests reach once torch is there: models, runs, and the thread in which they run."""

from pathlib import Path
from typing import Any

from pellucid import catalog
from pellucid.api.model import DTYPES, specimens
from pellucid.axes import parse, show
from pellucid.bench import last_measured as measured
from pellucid.documents.cell import terms_document
from pellucid.documents.run import RunDocument, run_document
from pellucid.documents.sample import sample_document
from pellucid.documents.tensor import stats_document, stats_to_json
from pellucid.errors import RequestError, UseError
from pellucid.runs import execute, slices
from pellucid.runs.answers import tokenizer_of, visible
from pellucid.runs.kept_run import Run, RunStore, kept
from pellucid.runs.limits import Limits
from pellucid.runs.model_registry import LoadedModel, ModelRegistry
from pellucid.runs.request import RunRequest
from pellucid.runs.stats import stats_of
from pellucid.runs.worker import Stop
from pellucid.server.bench import Bench
from pellucid.server.bills import Bills
from pellucid.tracing import INDEX, Trace, load_trace

SCHEMA = 1


class Session:
    """opened: a model's name or the folder of a trace; None opens the first specimen. how: `load`'s settings.

    beside: the model that the trace was recorded from; a name that only the trace tells is followed to a specimen and nowhere else.
    """

    def __init__(self, opened: str | None, limits: Limits, beside: str | None = None, **how: Any) -> None:
        self.limits, self.runs, self.opened = limits, RunStore(limits), opened
        folder = Path(opened) if opened is not None and (Path(opened) / INDEX).is_file() else None
        traced = None if folder is None else load_trace(folder)
        if beside is not None and traced is None:
            raise UseError("open.beside", found=opened or "-")
        if traced is not None:
            opened = beside or (traced.model if traced.model in specimens() else None)
            how = {"dtype": dtype_of(traced), "ignore_fields": how.get("ignore_fields", ())}  # as it ran, where the trace's values are
        self.registry = ModelRegistry(opened, limits.models, **how)
        self.first: Run | None = None  # of a trace that was opened
        self.bills, self.bench = Bills(self.registry, limits), Bench(limits)
        loaded = None if opened is None else self.registry[opened]
        if traced is not None:
            traced.model = beside or traced.model
            self.first = execute.recorded(alike(loaded, traced, beside is not None), traced, limits, folder)

    def models(self) -> dict[str, Any]:
        """What the page may run, and what it shows first."""
        if self.first is not None:
            self.runs.put(self.first)
        rows = self.registry.list()
        current = self.registry.opened or rows[0]["name"]
        return {"schema": SCHEMA, "current": current, "run": self.first and self.first.id, "models": rows}

    def live(self, request: RunRequest, stop: Stop) -> RunDocument:
        """Run a prompt, keep the run, tell it."""
        run = execute.run_prompt(
            self.registry[request.model], request, stop, self.limits, lambda id, n: execute.whole(self.runs[id], n, stop).value
        )
        return run_document(self.runs.put(run))

    def ready(self, run: Run, n: int, terms: bool) -> bool:
        """Whether a tensor can be told without running the model."""
        s = run.seen(n)
        return (kept(s) and (not terms or s.terms is not None)) or s.later is not None or n in run.again or run.request is None

    def part(self, run: Run, n: int, at: str | None, level: slices.Level, stop: Stop) -> bytes:
        """A tensor's part in a safetensors file's bytes."""
        s = run.seen(n)
        part = slices.part_of(at, s.shape)
        slices.require(part, s.shape, s.dtype, level, self.limits)
        return slices.packed(execute.whole(run, n, stop).value, part, level, s.path)

    def terms(self, run: Run, n: int, index: str, stop: Stop) -> dict[str, Any]:
        """A cell's terms."""
        return terms_document(run, execute.whole(run, n, stop, terms=True), index, self.limits)

    def stats(self, run: Run, n: int, stop: Stop) -> dict[str, Any]:
        """A tensor's measures."""
        seen = execute.whole(run, n, stop)
        return stats_document(run, n, seen, run.measure(n, seen.value))

    def logits(self, run: Run, k: int) -> int:
        """The number of a step's logits."""
        found = range(run.firsts[k], run.firsts[k + 1])
        if (n := next((n for n in found if run.trace.seen[n].path == "logits"), None)) is None:
            raise RequestError("server.logits", 400, "step", step=k)
        return n

    def sample(self, run: Run, k: int, row: int, given: dict[str, Any], most: int, stop: Stop) -> dict[str, Any]:
        """What settings of sampling make of a row's logits; row -1 is the last."""
        logits = execute.whole(run, self.logits(run, k), stop).value[0]
        if not -1 <= row < len(logits):
            raise RequestError("server.field", 400, "row", name="row", found=row, allowed=f"-1..{len(logits) - 1}")
        return sample_document(run, k, row, logits[row], given, most)

    def weight(self, name: str, path: str, at: str | None, level: slices.Level) -> bytes:
        """A weight's part."""
        loaded = self.registry[name]
        x = loaded.tensor(path)
        part = slices.part_of(at, tuple(x.shape))
        slices.require(part, tuple(x.shape), x.dtype, level, self.limits)
        if x.is_meta:
            raise RequestError("server.meta", 400, "path", path=path)
        return slices.packed(x, part, level, path)

    def weight_stats(self, name: str, path: str) -> dict[str, Any]:
        """A weight's measures."""
        loaded = self.registry[name]
        x = loaded.tensor(path)
        if x.is_meta:
            raise RequestError("server.meta", 400, "path", path=path)
        if path not in loaded.measures:
            loaded.measures[path] = stats_of(x)
        return {"schema": SCHEMA, "model": name, "path": path, "stats": stats_to_json(loaded.measures[path])}

    def tokens(self, name: str, text: str) -> dict[str, Any]:
        """The ids and pieces of a text, for which nothing runs."""
        loaded = self.registry[name]
        if loaded.model is None or (tokenizer := tokenizer_of(loaded.model)) is None:
            raise RequestError("server.shapes", 400, "prompt", model=name)
        ids = loaded.model.ids(text)
        return {"schema": SCHEMA, "model": name, "ids": ids, "pieces": [visible(p) for p in tokenizer.pieces(ids)]}

    def catalog(self) -> dict[str, Any]:
        """Published models and devices, and situations of one on some: what can be counted, and on what."""
        models = [
            {"id": e["id"], "name": e["name"], "disclosed": "statements" not in e, "statements": e.get("statements")}
            | {"organisation": e["organisation"], "released": e["released"], "source": e["source"]}
            | {"published": {k: str(v) for k, v in (e.get("published") or {}).items()}, "notes": e.get("notes") or []}
            for e in catalog.models().values()
        ]
        told = {"models": models, "devices": [*here(), *catalog.devices().values()], "situations": list(catalog.situations().values())}
        return {"schema": SCHEMA, **told}


def alike(loaded: LoadedModel | None, traced: Trace, request: bool) -> LoadedModel | None:
    """A trace's model, if it can be that: one that was asked for must be, and one of the same name may be another."""
    if loaded is None:
        return None
    if request and not loaded.has_weights:
        raise UseError("open.weights", model=loaded.name)
    sizes = {"D": loaded.config.width, "V": loaded.config.vocab}
    named = ((axis, n) for s in traced for axis, n in zip(map(show, parse(s.dims)), s.shape, strict=True))
    if all(sizes.get(axis, n) == n for axis, n in named):
        return loaded
    if request:
        raise UseError("open.fits", model=loaded.name)
    return None


def dtype_of(traced: Trace) -> str | None:
    """The type that a trace's model ran in."""
    found = (str(s.dtype).removeprefix("torch.") for s in traced if s.dtype.is_floating_point)
    return next((name for name in found if name in DTYPES), None)


def here() -> list[dict[str, Any]]:
    """This machine as a device, where `pellucid bench --limits` has measured it."""
    try:
        own = measured.kept()
    except UseError:
        return []
    d = own.device
    return [
        {
            "id": "cpu",
            "name": d.name,
            "memory": d.memory,
            "bandwidth": d.bandwidth,
            "peak": dict(d.peak),
            "source": d.source,
            "date": own.date,
        }
    ]
