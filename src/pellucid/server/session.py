"""The state of one server, built once torch is imported: models, runs, bills and measurements."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pellucid import catalog
from pellucid.api.model import DTYPES, specimens
from pellucid.api.open_tokenizer import open_tokenizer, tokenizer_alone
from pellucid.axes import parse, show
from pellucid.bench import last_measured as measured
from pellucid.checkpoint.folder import TRACE
from pellucid.checkpoint.opening import recorded_runs
from pellucid.documents.cell import terms_document
from pellucid.documents.run import RunDocument, run_document
from pellucid.documents.run_progress import ProgressDocument, progress_document
from pellucid.documents.sample import sample_document
from pellucid.documents.tensor import stats_document, stats_to_json
from pellucid.documents.tokens import TokensDocument, tokens_document
from pellucid.errors import RequestError, UseError
from pellucid.runs import execute, slices
from pellucid.runs.answers import tokenizer_of
from pellucid.runs.kept_run import Run, RunStore, kept
from pellucid.runs.limits import Limits
from pellucid.runs.model_registry import LoadedModel, ModelRegistry
from pellucid.runs.progress import Progress
from pellucid.runs.request import RunRequest
from pellucid.runs.stats import stats_of
from pellucid.runs.worker import Stop
from pellucid.server.bench import Bench
from pellucid.server.bills import Bills
from pellucid.server.exhibits import Gallery
from pellucid.server.learning import Learning, run_of, trained
from pellucid.tracing import Trace, load_trace

if TYPE_CHECKING:
    from pellucid.server.openai.served_model import ServedModel

SCHEMA = 1


class Session:
    """The state of one server.

    opened: a model's name, or the folder of a trace, of a run of training or of a tokenizer alone; None opens the first specimen.

    how: `load`'s settings.

    recorded_by: the model that the trace was recorded from. Without it a name in the trace is loaded only if it is a specimen's.
    served: models that are loaded already.  answering: those whose engine draws the answers of a chat, by name.
    shipped: the name of the run of training that the page shows, unless it was opened with one, or models are served.
    """

    def __init__(
        self,
        opened: str | None,
        limits: Limits,
        recorded_by: str | None = None,
        served: Mapping[str, LoadedModel] | None = None,
        answering: "Mapping[str, ServedModel] | None" = None,
        **how: Any,
    ) -> None:
        self.answering = {name: model for name, model in (answering or {}).items() if model.thread is not None}
        self.limits, self.runs, self.opened = limits, RunStore(limits), opened
        self.progress: Progress | None = None  # of the run that is going on
        training = None if opened is None else run_of(opened)
        self.shipped = next(iter(recorded_runs()), None) if training is None and served is None else None
        self.learning = Learning(training if self.shipped is None else recorded_runs()[self.shipped])
        if training is not None:
            opened = opened if opened in recorded_runs() else trained(training)
        folder = Path(opened) if opened is not None and (Path(opened) / TRACE).is_file() else None
        self.tokenizers = {opened: open_tokenizer(opened)} if opened is not None and tokenizer_alone(Path(opened)) else {}
        if self.tokenizers:
            opened = None  # the page's other views run the first specimen
        traced = None if folder is None else load_trace(folder)
        if recorded_by is not None and traced is None:
            raise UseError("open.beside", found=opened or "-")
        if traced is not None:
            opened = recorded_by or (traced.model if traced.model in specimens() else None)
            how = {"dtype": dtype_of(traced), "ignore_fields": how.get("ignore_fields", ())}  # as it ran, where the trace's values are
        self.registry = ModelRegistry(opened, limits.models, served, **how)
        self.first: Run | None = None  # of a trace that was opened
        self.bills, self.bench, self.gallery = Bills(self.registry, limits), Bench(limits), Gallery(self.registry, limits)
        loaded = None if opened is None else self.registry[opened]
        if traced is not None:
            traced.model = recorded_by or traced.model
            self.first = execute.recorded(alike(loaded, traced, recorded_by is not None), traced, limits, folder)

    def models(self, shown: str | None = None) -> dict[str, Any]:
        """Return the models of the registry as JSON, and the model and run that the page shows first. shown: the id of that run."""
        first = self.first if shown is None else self.runs[shown]
        if first is not None:
            self.runs.put(first)
        rows = self.registry.list()
        current = self.registry.opened or rows[0]["name"] if shown is None or first is None else first.trace.model
        training = None if self.shipped is not None or self.learning.run is None else str(self.learning.run.folder)
        ids = {"run": first and first.id, "training": training, "shipped": self.shipped, "tokenizer": next(iter(self.tokenizers), None)}
        return {"schema": SCHEMA, "current": current, **ids, "models": rows}

    def going(self, waiter: str = "") -> ProgressDocument:
        """Return how far the run of `waiter`'s request has come; "" asks for any."""
        return progress_document(self.progress, waiter)

    def new_run(self, request: RunRequest, stop: Stop, waiter: str = "") -> RunDocument:
        """Run a prompt, keep the run and return its document. waiter: the name that the request gave itself."""
        self.progress = Progress(waiter)
        try:
            run = execute.run_prompt(self.registry[request.model], request, stop, self.limits, self.progress)
            return run_document(self.runs.put(run))
        finally:
            self.progress = None

    def ready(self, run: Run, n: int, terms: bool) -> bool:
        """True if tensor `n`, with its terms if `terms`, needs no run of the model."""
        s = run.seen(n)
        return (kept(s) and (not terms or s.terms is not None)) or s.later is not None or n in run.again or run.request is None

    def part(self, run: Run, n: int, at: str | None, level: slices.Level, stop: Stop) -> bytes:
        """Return a part of tensor `n` as the bytes of a safetensors file."""
        s = run.seen(n)
        part = slices.part_of(at, s.shape)
        slices.require(part, s.shape, s.dtype, level, self.limits)
        return slices.packed(execute.full_record(run, n, stop).value, part, level, s.path)

    def terms(self, run: Run, n: int, index: str, stop: Stop) -> dict[str, Any]:
        """Return the terms of the cell at `index` of tensor `n`."""
        return terms_document(run, execute.full_record(run, n, stop, terms=True), index, self.limits)

    def stats(self, run: Run, n: int, stop: Stop) -> dict[str, Any]:
        """Return the stats of tensor `n`."""
        seen = execute.full_record(run, n, stop)
        return stats_document(run, n, seen, run.measure(n, seen.value))

    def logits(self, run: Run, k: int) -> int:
        """Return the number of step `k`'s logits. A RequestError if it has none."""
        numbers = range(run.firsts[k], run.firsts[k + 1])
        if (n := next((n for n in numbers if run.trace.seen[n].path == "logits"), None)) is None:
            raise RequestError("server.logits", 400, "step", step=k)
        return n

    def sample(self, run: Run, k: int, row: int, given: dict[str, Any], most: int, stop: Stop) -> dict[str, Any]:
        """Apply settings of sampling to a row's logits; row -1 is the last."""
        logits = execute.full_record(run, self.logits(run, k), stop).value[0]
        if not -1 <= row < len(logits):
            raise RequestError("server.field", 400, "row", name="row", found=row, allowed=f"-1..{len(logits) - 1}")
        return sample_document(run, k, row, logits[row], given, most)

    def model(self, name: str, run: str | None) -> LoadedModel:
        """Return the model of a name; with the id of a run of it, the model that ran, with its switches."""
        loaded = None if run is None else self.runs[run].loaded
        return self.registry[name] if loaded is None or loaded.name != name else loaded

    def weight(self, loaded: LoadedModel, path: str, at: str | None, level: slices.Level) -> bytes:
        """Return a part of the weight at `path` as the bytes of a safetensors file. A RequestError for a model without values."""
        x = loaded.tensor(path)
        part = slices.part_of(at, tuple(x.shape))
        slices.require(part, tuple(x.shape), x.dtype, level, self.limits)
        if x.is_meta:
            raise RequestError("server.meta", 400, "path", path=path)
        return slices.packed(x, part, level, path)

    def weight_stats(self, loaded: LoadedModel, path: str) -> dict[str, Any]:
        """Return the stats of the weight at `path`. A RequestError for a model without values."""
        x = loaded.tensor(path)
        if x.is_meta:
            raise RequestError("server.meta", 400, "path", path=path)
        if path not in loaded.measures:
            loaded.measures[path] = stats_of(x)
        return {"schema": SCHEMA, "model": loaded.name, "path": path, "stats": stats_to_json(loaded.measures[path])}

    def tokens(self, name: str, given: str | tuple[int, ...], special: bool) -> TokensDocument:
        """Return a text or ids as tokens. name: of a model, or of the tokenizer that was opened. A RequestError if it has none."""
        if isinstance(given, str) and len(given) > self.limits.letters:
            raise RequestError("server.tokens", 400, "prompt", found=len(given), limit=self.limits.tokens)
        if (tokenizer := self.tokenizers.get(name)) is None:
            loaded = self.registry[name]
            if loaded.model is None or (tokenizer := tokenizer_of(loaded.model)) is None:
                raise RequestError("server.shapes", 400, "prompt", model=name)
        document = tokens_document(name, tokenizer, given, special)
        if len(document["ids"]) > self.limits.tokens:
            raise RequestError("server.tokens", 400, "prompt", found=len(document["ids"]), limit=self.limits.tokens)
        return document

    def catalog(self) -> dict[str, Any]:
        """Return the catalogue: published models, devices with this machine first, and situations of a model on devices."""
        models = [
            {"id": e["id"], "name": e["name"], "disclosed": "statements" not in e, "statements": catalog.statements(e) or None}
            | {"organisation": e["organisation"], "released": e["released"], "source": catalog.source(e)}
            | {"published": {k: str(v) for k, v in (e.get("published") or {}).items()}, "notes": catalog.notes(e)}
            for e in catalog.models().values()
        ]
        entries = {"models": models, "devices": [*here(), *catalog.devices().values()], "situations": list(catalog.situations().values())}
        return {"schema": SCHEMA, **entries}


def alike(loaded: LoadedModel | None, traced: Trace, request: bool) -> LoadedModel | None:
    """Return `loaded` if it fits the shapes of the trace, else None.

    request: True for a model that the command names. Raises a UseError if that has no weights or does not fit.
    """
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
    """Return the dtype that a trace's model ran in, None if no tensor of the trace tells."""
    names = (str(s.dtype).removeprefix("torch.") for s in traced if s.dtype.is_floating_point)
    return next((name for name in names if name in DTYPES), None)


def here() -> list[dict[str, Any]]:
    """Return this machine as a device, in a list that is empty if `pellucid bench --limits` has not measured it."""
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
