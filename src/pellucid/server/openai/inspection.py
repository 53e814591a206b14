"""One request among many that is recorded or changed: the field `pellucid` of a body, and the traces that such requests leave.

    "pellucid": {"watch": "layers.*.attn.pattern", "edit": ["layers.2.attn.z[H=3] = 0"]}

A trace is a run of the page's session under an id of its own, kept within the session's limits of count and bytes.
"""

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pellucid.api.change_values import change_of
from pellucid.api.trace import trace
from pellucid.batch.step import Step
from pellucid.engine.requests import GREEDY, Request
from pellucid.engine.watched_text import SAMPLE, Allowance, WatchedText
from pellucid.errors import RequestError, ShapeError
from pellucid.families.aliases import aliases, put
from pellucid.nn.transformer import EncoderDecoder
from pellucid.ops.sampling.settings import OFF
from pellucid.runs.answers import Answer, answer, tokenizer_of
from pellucid.runs.execute import ids_of
from pellucid.runs.kept_run import Run
from pellucid.runs.limits import Limits
from pellucid.runs.model_registry import LoadedModel
from pellucid.runs.request import RunRequest, described, known, wrong
from pellucid.runs.request import change_of as text_of
from pellucid.server.session import Session
from pellucid.tracing import Trace, resolved, watch
from pellucid.watching.cells import ALONG
from pellucid.watching.change import Change
from pellucid.watching.change_text import ChangeText
from pellucid.watching.tap import offered

if TYPE_CHECKING:
    from pellucid.server.openai.served_model import ServedModel

SCHEMA = 1
PATTERNS, PATTERN = 64, 200  # of a watch, and characters of one
STAGES = ("logits", "allowed", *OFF, "probabilities")


@dataclass(frozen=True)
class Inspection:
    """What the field asks for. only: paths to record.  changes: parsed texts."""

    only: tuple[str, ...] = ()
    changes: tuple[ChangeText, ...] = ()


def inspection_of(given: Any, limits: Limits) -> Inspection:
    """Read the field `pellucid`. A RequestError for a wrong one, a UseError for a change that cannot be parsed."""
    if not isinstance(given, dict):
        raise wrong("pellucid", described(given), '{"watch": "layers.*.attn.pattern", "edit": ["layers.2.attn.z[H=3] = 0"]}')
    known(given, ("watch", "edit"), "pellucid.")
    only, texts = given.get("watch") or [], given.get("edit") or []
    patterns, several = ([only] if isinstance(only, str) else only), ([texts] if isinstance(texts, str) else texts)
    fits = isinstance(patterns, list) and all(isinstance(p, str) and 0 < len(p) <= PATTERN for p in patterns)
    if not fits or len(patterns) > PATTERNS:
        raise wrong("pellucid.watch", described(only), f'"layers.*.attn.pattern" | ["..."] (1..{PATTERNS}, 1..{PATTERN})')
    if not isinstance(several, list) or len(several) > limits.changes:
        raise wrong("pellucid.edit", described(texts), f'["..."] (0..{limits.changes})')
    return Inspection(tuple(patterns), tuple(text_of(c, f"pellucid.edit[{i}]") for i, c in enumerate(several)))


def unmet(field: str, path: str, paths: Mapping[str, object]) -> RequestError:
    """Return the error for a path that names no tensor."""
    return RequestError("serve.unmet", 400, field, name=field, path=path, near=offered(path, paths, {}))


@dataclass
class TraceNotes:
    """What a kept trace does not say itself. watched, changes: texts of the request.  left_out: tensors beyond the limits."""

    watched: tuple[str, ...]
    changes: tuple[str, ...]
    created: int = field(default_factory=lambda: int(time.time()))
    left_out: int = 0


class Inspector:
    """The watches of a server's requests, and the session that keeps their traces and shows the page."""

    def __init__(self, models: "Mapping[str, ServedModel]", limits: Limits) -> None:
        self.limits, self.allowance, self.lock = limits, Allowance(limits.kept), threading.Lock()
        self.loaded = {name: LoadedModel(name, s.model.family.name, s.model.module, s.model) for name, s in models.items()}
        self.session = Session(None, limits, served=self.loaded, answering=models)
        self.notes: dict[str, TraceNotes] = {}
        self.axes: dict[str, dict[str, list[str]]] = {}  # of each tensor, by model

    def watched(self, name: str, wish: Inspection, request: Request, prompt: str | None) -> tuple[str, WatchedText]:
        """Return the id of a trace to come, and the watch that will fill it. prompt: the request's text, if it was one.

        An error for a path, an axis or a size that cannot be recorded or changed.
        """
        loaded = self.loaded[name]
        model = loaded.model
        assert model is not None
        names = aliases(model.module, model.family)
        only = tuple(put(wish.only, names))
        (changes,) = resolved(model, [self.changes(loaded, wish)], names)
        ids = request.prompt if request.source is None else request.source
        self.check(loaded, only, changes, len(ids) + request.new, len(ids))
        id, notes = secrets.token_hex(16), TraceNotes(wish.only, tuple(c.text for c in wish.changes))
        answers, tokenizer = list[list[Answer]](), tokenizer_of(model)

        def chosen(logits: Tensor, token: int) -> None:
            if wish.only:
                answers.append([answer(tokenizer, logits, -1, token, self.limits.candidates)])

        def ended(w: WatchedText) -> None:
            if not wish.only or w.fault is not None or not w.seen:
                return
            new = tuple(w.new)
            recorded = Trace(name, prompt, list(ids), w.new, w.seen, model.config.starts, runner=model)
            recorded.aliases = names
            settings = {k: value for k in (*OFF, "seed") if (value := getattr(request.sampling, k)) != getattr(GREEDY, k)}
            how = RunRequest(name, prompt, tuple(ids), max(1, len(new)), settings, wish.changes, known_tokens=new)
            self.keep(Run(loaded, recorded, answers, how, changes, self.limits, id), notes, w.left_out)

        made = WatchedText(model.module, only, changes, self.limits.trace, self.allowance, chosen, ended)
        made.aliases = names
        return id, made

    def changes(self, loaded: LoadedModel, wish: Inspection) -> list[Change]:
        """Return the changes of a request. A value from another prompt is of the prompt's own forward."""
        assert loaded.model is not None
        model = loaded.model

        def run_of(path: str) -> Callable[[str], Trace]:
            return lambda other: trace(model, ids_of(model, other, None, self.limits), 1, only=path)

        return [change_of(c, run_of(c.path)) for c in wish.changes]

    def check(self, loaded: LoadedModel, only: tuple[str, ...], changes: list[Change], tokens: int, prompt: int) -> None:
        """Raise an error for a pattern or change that names no tensor, an axis that a tensor does not have, and too large a table."""
        axes = self.axes_of(loaded)
        for pattern in only:
            if not any(fnmatchcase(path, pattern) for path in axes):
                raise unmet("pellucid.watch", pattern, axes)
        for c in changes:
            if not any(fnmatchcase(path, c.path) for path in axes):
                raise unmet("pellucid.edit", c.path, axes)
            for path in (path for path in axes if fnmatchcase(path, c.path)):
                letters = axes[path]
                for letter in c.at if isinstance(c.at, Mapping) else ():
                    if letter not in letters and letter not in [ALONG[axis] for axis in letters if axis in ALONG]:
                        raise ShapeError("change.letter", change=c.text, letter=letter, path=path, allowed=" ".join(letters))
        if prompt > self.limits.tokens:
            raise RequestError("server.tokens", 400, "prompt", found=prompt, limit=self.limits.tokens)
        for path, letters in axes.items():
            if any(fnmatchcase(path, p) for p in (*only, *(c.path for c in changes))):
                sizes = {"T": prompt, "S": prompt, "H": loaded.config.heads, "V": loaded.config.vocab}
                state = {"T", "K", "W"} <= {*letters}  # one for each token
                if state or {"T", "S"} <= {*letters} or path == "logits":
                    of_state = max(one.state for one in loaded.config.layers) * prompt
                    size = 4 * (of_state if state else prod(sizes.get(letter, 1) for letter in letters))
                    if size > self.limits.trace:
                        raise RequestError("server.table", 413, "pellucid", path=path, size=size, limit=self.limits.trace)

    def axes_of(self, loaded: LoadedModel) -> dict[str, list[str]]:
        """Return the axes of every tensor that a request of the model may record, by its path. Found once, by a short forward."""
        with self.lock:
            if loaded.name not in self.axes:
                model, tokens = loaded.model, torch.zeros(1, 2, dtype=torch.long)
                assert model is not None
                given = [x.to(model.device) for x in ((tokens, tokens) if isinstance(model.module, EncoderDecoder) else (tokens,))]
                steps = [Step.plain(x) for x in given]
                with torch.no_grad(), watch(model, inside="listed", keep=lambda x: None) as seen:
                    model.module(*given, *reversed(steps))
                sampled = {f"{SAMPLE}.{stage}": ["V"] for stage in STAGES}
                self.axes[loaded.name] = {s.path: s.dims.split() for s in seen} | sampled
            return self.axes[loaded.name]

    def keep(self, run: Run, notes: TraceNotes, left_out: int) -> None:
        """Keep the run of a watched request, and forget the notes of runs that it has displaced."""
        self.session.runs.put(run)
        notes.left_out = left_out
        with self.lock:
            self.notes[run.id] = notes
            for id in [id for id in self.notes if id not in self.session.runs.by_id]:
                del self.notes[id]

    def summary(self, id: str) -> dict[str, Any]:
        """Return a trace as JSON, without its tensors. A RequestError if it is not kept."""
        run = self.session.runs[id]
        if (notes := self.notes.get(id)) is None:
            raise RequestError("server.run", 404, "run", found=id)
        return {
            "id": id, "model": run.trace.model, "created": notes.created, "watch": list(notes.watched), "edit": list(notes.changes),
            "prompt": run.trace.prompt, "ids": run.trace.ids, "new": run.trace.new, "steps": run.trace.steps,
            "tensors": len(run.trace.seen), "bytes": sum(s.value.nbytes for s in run.trace.seen if isinstance(s.value, Tensor)),
            "left_out": notes.left_out, "page": page_of(id),
        }  # fmt: skip

    def document(self, id: str) -> dict[str, Any]:
        """Return a trace as JSON, with a line for each tensor, whose number `n` the routes of its values take."""
        rows = [
            {"n": n, "path": s.path, "dims": s.dims, "shape": list(s.shape), "dtype": str(s.dtype).removeprefix("torch."), "step": s.step,
             "source": s.source}
            for n, s in enumerate(self.session.runs[id].trace.seen)
        ]  # fmt: skip
        return {"schema": SCHEMA, **self.summary(id), "records": rows}

    def list(self) -> dict[str, Any]:
        """Return the kept traces, the newest first, and the limits."""
        kept = [id for id in reversed(self.notes) if id in self.session.runs.by_id]
        limits = {"count": self.limits.runs, "bytes": self.limits.kept, "bytes_of_one": self.limits.trace}
        return {"schema": SCHEMA, "limits": limits, "traces": [self.summary(id) for id in kept]}

    def drop(self, id: str) -> None:
        """Forget a trace. A RequestError if it is not kept."""
        self.summary(id)
        self.session.runs.budget.drop((id, None))
        with self.lock:
            self.notes.pop(id, None)

    def noted(self, id: str) -> dict[str, Any]:
        """Return what the answer of a request says of its trace."""
        try:
            summary = self.summary(id)
        except RequestError:  # other traces have displaced it already, or none was kept
            return {"trace": None}
        return {"trace": id} | {name: summary[name] for name in ("page", "steps", "tensors", "bytes", "left_out")}


def page_of(id: str) -> str:
    """Return the path of a trace's page."""
    return f"/traces/{id}/"
