"""Runs of models, kept until others need their place: a trace of a prompt with what could come next at every step.

A value too large to keep is let go; asked for, it is computed again by the same run watched at its path alone. Many or large tables of
scores are only listed; asked for, one is computed by its op's reference, from what the op was given: for that no model runs, and nobody
waits for one that does.
"""

import secrets
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor

from pellucid.api.model import Model
from pellucid.api.trace import trace
from pellucid.documents.run import Answer, answer, piece_of, tokenizer_of, visible
from pellucid.errors import RequestError, TraceError, UseError
from pellucid.nn.transformer import Encoder, EncoderDecoder
from pellucid.ops.sampling.settings import Sampling
from pellucid.ops.sampling.stages import choose
from pellucid.server.asked import Asked, Edit
from pellucid.server.budget import TABLES, TENSORS, Budget, held_by, largest, require, weights_of
from pellucid.server.limits import LIMITS, Limits
from pellucid.server.shelf import LoadedModel
from pellucid.server.stats import Stats, stats_of
from pellucid.server.tensors import part_of
from pellucid.server.worker import Stop
from pellucid.tokenizer.pieces import Piece
from pellucid.tokenizer.tokenizer import Tokenizer
from pellucid.tracing import Trace, watch
from pellucid.watching.meta import META
from pellucid.watching.watch import Seen

TABLE = threading.Lock()  # one listed table is computed at a time, of all runs: whoever asks for the same one waits for it


@dataclass(frozen=True)
class LetGo:
    """What is left of a value that was not kept; of a very large one nothing."""

    stats: Stats | None


@dataclass(eq=False)
class Run:
    """A run under its id. held: its model, None where only tensors were opened.  answers: of each step.  asked: as it was asked for."""

    held: LoadedModel | None
    trace: Trace
    answers: list[list[Answer]] = field(default_factory=list)
    asked: Asked | None = None
    patches: dict[Edit, Tensor] = field(default_factory=dict)  # what its edits take from other runs, which may be gone by now
    limits: Limits = LIMITS
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    measures: dict[int, Stats] = field(default_factory=dict)
    again: dict[int, Seen] = field(default_factory=dict)  # records whose values were computed again
    budget: Budget | None = None  # that counts what it holds, once it is kept

    @property
    def model(self) -> Model | None:
        return None if self.held is None else self.held.model

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        return None if self.model is None else tokenizer_of(self.model)

    @cached_property
    def kind(self) -> str | None:
        """Of the model; where that is not here, as far as the run tells it."""
        if self.held is not None:
            return self.held.kind
        return "encoder-decoder" if self.trace.starts is not None else "encoder" if self.trace.blanks else None

    @cached_property
    def read(self) -> list[int]:
        """What the first step was fed."""
        starts = self.trace.starts if self.held is None else self.held.config.starts
        return self.trace.ids if starts is None else [starts]

    def fed(self, k: int) -> tuple[list[int], int]:
        """The tokens of a step's rows, and how many rows the past held: a text that has become too long for its past is read again."""
        told, end = [*self.read, *self.trace.new], len(self.read) + k
        of = (
            s for s in self.trace.seen[self.firsts[k] : self.firsts[k + 1]] if "T" in s.dims.split() and not s.path.startswith("encoder.")
        )
        rows = next((s.shape[s.dims.split().index("T")] for s in of), 1) if k else end
        return told[end - rows : end], end - rows

    def piece(self, id: int) -> str:
        """What an id stands for, as it is shown: as the trace's file tells it, else as the tokenizer does."""
        raw = self.trace.pieces.get(id)
        return visible(piece_of(self.tokenizer, id) if raw is None else Piece(id, "", raw, False))

    @cached_property
    def apart(self) -> frozenset[int]:
        """Where the weights of its model lie, which it does not hold."""
        return frozenset() if self.held is None else weights_of(self.held.module)

    @property
    def memory(self) -> dict[int, int]:
        """What it holds but for values computed again, bytes by address."""
        return held_by((self.trace.seen, self.patches, self.answers), self.apart)

    @cached_property
    def firsts(self) -> list[int]:
        """The number of the first tensor of every step, and how many there are in all."""
        steps = [s.step for s in self.trace]
        return [bisect_left(steps, k) for k in range(self.trace.steps)] + [len(steps)]

    def measure(self, n: int, value: Tensor) -> Stats:
        """What the values of a number range over, taken once."""
        if n not in self.measures:
            self.measures[n] = stats_of(value)
        return self.measures[n]

    def latest(self, n: int) -> Seen | None:
        """The record of a number with its value, where that was computed again and is still there."""
        if self.budget is not None:
            self.budget.use((self.id, n))
        return self.again.get(n)

    def renew(self, n: int, find: Callable[[], Seen]) -> Seen:
        """The record with its value computed again, which is kept as long as the budget has room for it."""
        size = prod(self.trace.seen[n].shape) * self.trace.seen[n].dtype.itemsize
        if self.budget is not None and size <= self.budget.limit:  # room first, so that both are never there
            self.budget.shrink(self.budget.limit - size, (self.id, n))
        found = find()
        if self.budget is not None:
            self.again[n] = found
            self.budget.put((self.id, n), held_by((found,), self.apart), lambda: self.again.pop(n, None))
        return found

    def seen(self, n: int) -> Seen:
        """The record of a number."""
        if not 0 <= n < len(self.trace.seen):
            raise RequestError("server.tensor", 404, "n", found=n, last=len(self.trace.seen) - 1)
        return self.trace.seen[n]


def kept(s: Seen) -> bool:
    """Whether a record has its value."""
    return isinstance(s.value, Tensor) and not s.value.is_meta


def summed(run: Run, s: Seen) -> bool:
    """Whether what a record's cells are sums of can be told: a trace from a file holds values alone, and an edit is given, not made."""
    if s.source == "edited":
        return False
    return s.terms is not None or s.later is not None or (run.asked is not None and not (isinstance(s.value, Tensor) and s.value.is_meta))


class Runs:
    """The latest runs by their ids, as many as the limits allow."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.budget = limits, Budget(limits.kept)
        self.found: OrderedDict[str, Run] = OrderedDict()

    def put(self, run: Run) -> Run:
        """Keep a run, and let go what was used longest ago. Of one that alone holds more than may be kept the terms go: they are computed
        again when they are asked for.
        """
        if run.id in self.found:
            return self[run.id]
        if sum((memory := run.memory).values()) > self.limits.kept:
            for s in run.trace.seen:
                s.terms = None
            memory = run.memory
        with self.budget.lock:
            self.found[run.id], run.budget = run, self.budget
            self.budget.put((run.id, None), memory, lambda: self.found.pop(run.id, None))
            while len(self.found) > self.limits.runs:
                self.budget.drop((next(iter(self.found)), None))
        return run

    def __getitem__(self, id: str) -> Run:
        with self.budget.lock:
            if id not in self.found:
                raise RequestError("server.run", 404, "run", found=id)
            self.found.move_to_end(id)
            self.budget.use((id, None))
            return self.found[id]

    def __len__(self) -> int:
        return len(self.found)


class Keeping:
    """What a run keeps of its tensors: their values while there is room, else their measures."""

    def __init__(self, stop: Stop, limits: Limits) -> None:
        self.stop, self.limits, self.size = stop, limits, 0
        self.storages: set[int] = set()

    def __call__(self, x: Tensor) -> Any:
        self.stop.check()
        if x.is_meta:
            return x
        storage = x.untyped_storage()
        own = 0 if storage.data_ptr() in self.storages else storage.nbytes()
        if x.nbytes > self.limits.value or self.size + own > self.limits.kept // 2:
            return LetGo(stats_of(x) if x.numel() <= self.limits.measured else None)
        self.storages.add(storage.data_ptr())
        self.size += own
        return x.detach()


def live(held: LoadedModel, asked: Asked, stop: Stop, limits: Limits, values: Callable[[str, int], Tensor]) -> Run:
    """Run a prompt, watched; tables of scores are listed alone where they are large. values: another run's tensor, for patches."""
    if held.model is None or not held.has_weights:
        return shapes(held, asked, stop, limits)
    model = held.model
    ids = ids_of(model, asked.prompt, asked.ids, limits)
    require(TENSORS * largest(model.module, min(len(ids), held.config.positions or len(ids))), limits)
    answers: list[list[Answer]] = []
    tokenizer = tokenizer_of(model)
    choose = choosing(held, asked, ids)

    def chosen(logits: Tensor) -> int:
        token = choose(logits)
        answers.append([answer(tokenizer, logits, -1, token, limits.candidates)])
        return token

    patches = {e: values(e.run, e.n) for e in asked.edits if e.run is not None and e.n is not None}
    how: dict[str, Any] = {"keep": Keeping(stop, limits), "terms": True, "edit": changes(asked, patches)}
    how["inside"] = "beside" if square(held, len(ids) + asked.new) <= limits.tables else "listed"
    if isinstance(model.module, Encoder):
        model.check(torch.tensor([ids]))
        life = trace(model, ids, asked.new, **how)
    else:
        life = trace(model, ids, asked.new, chosen, **how)
    life.prompt = asked.prompt
    forget(life)
    run = Run(held, life, answers, asked, patches, limits)
    if isinstance(model.module, Encoder) and model.config.head:
        logits = whole(run, next(n for n, s in enumerate(life.seen) if s.path == "logits"), stop).value
        rows = zip(life.blanks, life.new, strict=True)
        answers.append([answer(tokenizer, logits[0, row], row, new, limits.candidates) for row, new in rows])
    return run


def recorded(held: LoadedModel | None, life: Trace, limits: Limits, folder: object = None) -> Run:
    """The run of a trace: what could come next at every step whose logits were recorded, and what did. folder: where it was read from."""
    if life.steps > limits.steps:
        raise TraceError("trace.steps", folder=folder or life.model, found=life.steps, most=limits.steps)
    run = Run(held, life, limits=limits)
    found = {s.step: s.value for s in life if s.path == "logits" and kept(s) and s.value.ndim == 3 and s.value.is_floating_point()}
    for k in range(life.steps):
        picks = zip(life.blanks, life.new, strict=False) if life.blanks else ((-1, i) for i in life.new[k : k + 1])
        x = found[k][0] if k in found and len(found[k]) else torch.empty(0, 0)
        fit = [(row, pick) for row, pick in picks if row < len(x) > 0 and pick < x.shape[1]]
        run.answers.append([answer(run.tokenizer, x[row], row, pick, limits.candidates) for row, pick in fit])
    return run


def ids_of(model: Model, prompt: str | None, ids: Sequence[int] | None, limits: Limits) -> list[int]:
    """The tokens of a prompt that is a text or ids already."""
    if prompt is not None and len(prompt) > 32 * limits.tokens:
        raise RequestError("server.tokens", 400, "prompt", found=len(prompt), limit=limits.tokens)
    found = list(ids) if ids is not None else model.ids(str(prompt))
    if not found:
        raise UseError("generate.empty", name="prompt")
    if len(found) > limits.tokens:
        raise RequestError("server.tokens", 400, "prompt", found=len(found), limit=limits.tokens)
    return found


def forget(life: Trace) -> None:
    """Terms hold what went into their op: let those go that would hold a value which is not kept."""
    gone = {(s.step, s.path) for s in life if isinstance(s.value, LetGo)}
    for s in life:
        if any((s.step, path) in gone for path in (s.path, *s.inputs)):
            s.terms = None


def square(held: LoadedModel, tokens: int) -> int:
    """About how many bytes the tables of scores and their patterns take."""
    layers = (*held.config.layers, *(held.config.encoder or ()))
    return sum(8 * one.attn.heads * tokens * tokens for one in layers)


def choosing(held: LoadedModel, asked: Asked, ids: Sequence[int]) -> Callable[[Tensor], int]:
    """What picks the tokens of a run, one after another; begun again it picks the same."""
    sampling = Sampling.of(asked.sampling)
    sampling.check(held.config.vocab)
    read = ids if held.config.starts is None else [held.config.starts]
    written: list[int] = []

    def picked(logits: Tensor) -> int:
        written.append(choose(logits, sampling, read, written))
        return written[-1]

    return picked


def changes(asked: Asked, patches: Mapping[Edit, Tensor]) -> dict[str, Callable[[Tensor], Tensor]]:
    """A run's edits by path, begun anew; see `watch`."""
    return {e.path: changing([x for x in asked.edits if x.path == e.path], patches) for e in asked.edits}


def changing(edits: Sequence[Edit], patches: Mapping[Edit, Tensor]) -> Callable[[Tensor], Tensor]:
    """What the edits of one path make of its tensor; one for a single step leaves the others alone."""
    step = -1

    def change(x: Tensor) -> Tensor:
        nonlocal step
        step += 1
        for e in edits:
            if e.step not in (None, step):
                continue
            part = part_of(e.at, tuple(x.shape), "edits.at")
            if e in patches:
                other = patches[e]
                given = other[part_of(e.source, tuple(other.shape), "edits.from.at")].to(x)
                if given.shape != x[part].shape:
                    raise RequestError("server.patch", 400, "edits", path=e.path, found=tuple(given.shape), allowed=tuple(x[part].shape))
                x[part] = given
            elif e.to is not None:
                check_number(e.to, "edits.to", x.dtype)
                x[part] = e.to
            else:
                check_number(factor := e.times or 0.0, "edits.times", torch.float64 if x.is_floating_point() else x.dtype)
                x[part] = x[part] * factor
        return x

    return change


def check_number(number: float, name: str, dtype: torch.dtype) -> None:
    """Refuse a number that this type does not hold: one beyond its largest, or a fraction among whole numbers."""
    if dtype.is_floating_point:
        most = torch.finfo(dtype).max
        if abs(number) > most:
            raise RequestError("server.field", 400, "edits", name=name, found=number, allowed=f"{-most:g}..{most:g}")
        return
    least, most = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    if number != int(number) or not least <= int(number) <= most:
        raise RequestError("server.field", 400, "edits", name=name, found=number, allowed=f"{least}..{most}, {dtype}".replace("torch.", ""))


def shapes(held: LoadedModel, asked: Asked, stop: Stop, limits: Limits) -> Run:
    """One forward on meta: every tensor's shape and products, and no number."""
    if asked.ids is None and held.model is None:
        raise RequestError("server.shapes", 400, "prompt", model=held.name)
    ids = list(asked.ids) if asked.ids is not None else held.model.ids(str(asked.prompt)) if held.model is not None else []
    if not 0 < len(ids) <= min(limits.tokens, held.config.positions or limits.tokens):
        raise RequestError("server.tokens", 400, "prompt", found=len(ids), limit=min(limits.tokens, held.config.positions or limits.tokens))
    tokens = torch.zeros(1, len(ids), dtype=torch.long, device=META)
    given = (tokens, tokens[:, :1]) if isinstance(held.module, EncoderDecoder) else (tokens,)
    with torch.no_grad(), watch(held.module, keep=Keeping(stop, limits)) as seen:
        held.module(*given)
    return Run(held, Trace(held.name, asked.prompt, ids, [], seen.seen), [], asked, {}, limits)


def whole(run: Run, n: int, stop: Stop, terms: bool = False) -> Seen:
    """A record with its value, and with its terms where they are asked for; computed again where it is not kept."""
    s = run.seen(n)
    if isinstance(s.value, Tensor) and s.value.is_meta and s.later is None:
        raise RequestError("server.meta", 400, "n", path=s.path)
    if terms and not summed(run, s):
        raise RequestError("page.given" if s.source == "edited" else "page.unsummed", 400, "n")
    if kept(s) and (not terms or s.terms is not None):
        return s
    if (found := run.latest(n)) is not None:
        return found
    if s.later is None:
        return run.renew(n, lambda: recomputed(run, s, stop))
    with TABLE:
        return run.latest(n) or run.renew(n, lambda: listed(run, s))


def listed(run: Run, s: Seen) -> Seen:
    """A table of scores or its pattern, from what went into its op."""
    assert s.later is not None
    size = prod(s.shape) * s.dtype.itemsize
    if size > run.limits.table:
        raise RequestError("server.table", 413, "n", path=s.path, size=size, limit=run.limits.table)
    require(TABLES * size, run.limits)
    return s.later()


def recomputed(run: Run, s: Seen, stop: Stop) -> Seen:
    """A record with its value and its terms, by the same run watched at its path alone."""
    assert run.held is not None and run.model is not None and run.asked is not None
    how: dict[str, Any] = {"keep": stop.keep, "terms": True, "edit": changes(run.asked, run.patches), "only": s.path}
    if isinstance(run.model.module, Encoder):
        life = trace(run.model, run.trace.ids, 1, **how)
    else:
        life = trace(run.model, run.trace.ids, s.step + 1, choosing(run.held, run.asked, run.trace.ids), **how)
    (found,) = (r for r in life if (r.step, r.call) == (s.step, s.call))
    return found
