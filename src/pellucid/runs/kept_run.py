"""A run under its id: a trace of a prompt, the answers of its steps, and values that were computed again since."""

import secrets
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from torch import Tensor

from pellucid.api.model import Model
from pellucid.api.switching import written
from pellucid.errors import RequestError
from pellucid.runs.answers import Answer, piece_of, tokenizer_of, visible
from pellucid.runs.limits import LIMITS, Limits
from pellucid.runs.memory_budget import Budget, held_by, weights_of
from pellucid.runs.model_registry import LoadedModel
from pellucid.runs.request import RunRequest
from pellucid.runs.stats import Stats, stats_of
from pellucid.tokenizer.pieces import Piece
from pellucid.tokenizer.tokenizer import Tokenizer
from pellucid.tracing import Trace
from pellucid.watching.change import Change
from pellucid.watching.records import Seen, has_nan


@dataclass(frozen=True)
class LetGo:
    """The stats of a value that was not kept; None of a value too large to measure."""

    stats: Stats | None


@dataclass(eq=False)
class Run:
    """A run under its id. loaded: its model, None where only tensors were opened.  answers: of each step.  request: None of a trace."""

    loaded: LoadedModel | None
    trace: Trace
    answers: list[list[Answer]] = field(default_factory=list)
    request: RunRequest | None = None
    changes: list[Change] = field(default_factory=list)  # with the tensors that they take from other runs
    limits: Limits = LIMITS
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    measures: dict[int, Stats] = field(default_factory=dict)
    again: dict[int, Seen] = field(default_factory=dict)  # records whose values were computed again
    budget: Budget | None = None  # that counts what it holds, once it is kept

    @property
    def model(self) -> Model | None:
        return None if self.loaded is None else self.loaded.model

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        return None if self.model is None else tokenizer_of(self.model)

    @cached_property
    def kind(self) -> str | None:
        """Return the kind of the model; without one the trace's, or None."""
        if self.loaded is not None:
            return self.loaded.kind
        return "encoder-decoder" if self.trace.starts is not None else "encoder" if self.trace.blanks else None

    @cached_property
    def read(self) -> list[int]:
        """Return the ids that the first step read."""
        starts = self.trace.starts if self.loaded is None else self.loaded.config.starts
        return self.trace.ids if starts is None else [starts]

    def fed(self, k: int) -> tuple[list[int], int]:
        """Return the ids of step `k`'s rows, and the count of rows in the KV cache before. A text that outgrows its cache is read again."""
        tokens, end = [*self.read, *self.trace.new], len(self.read) + k
        of = (
            s for s in self.trace.seen[self.firsts[k] : self.firsts[k + 1]] if "T" in s.dims.split() and not s.path.startswith("encoder.")
        )
        rows = next((s.shape[s.dims.split().index("T")] for s in of), 1) if k else end
        return tokens[end - rows : end], end - rows

    def token(self, id: int) -> Piece:
        """Return the piece of an id: from the trace's file if it has one, else from the tokenizer."""
        raw = self.trace.pieces.get(id)
        return piece_of(self.tokenizer, id) if raw is None else Piece(id, raw.decode("utf-8", "replace"), raw, False)

    def piece(self, id: int) -> str:
        """Return the piece of an id as it is shown."""
        return visible(self.token(id))

    @cached_property
    def apart(self) -> frozenset[int]:
        """Return the addresses of the model's weights: the registry's, and those that `made` counts."""
        return frozenset() if self.loaded is None else weights_of(self.loaded.module)

    @cached_property
    def made(self) -> dict[int, int]:
        """Return the bytes, by address, of the weights that were made for the run's switches: the run alone holds them."""
        if self.model is None or not self.model.own:
            return {}
        own = dict(self.model.module.named_parameters(remove_duplicate=False))
        return held_by(own[name].detach() for name in self.model.own)

    @cached_property
    def switches(self) -> list[str]:
        """Return the switches that were asked for, as they were read, each of the form NAME=VALUE."""
        if self.loaded is None or self.loaded.plain is None or self.model is None:
            return []  # the name of a variant that was made in Python has them
        return [f"{name}={written(value)}" for name, value in self.model.switches.items()]

    @property
    def memory(self) -> dict[int, int]:
        """Return the bytes that the run holds, by address, without values computed again."""
        return held_by((self.trace.seen, self.changes, self.answers), self.apart) | self.made

    @cached_property
    def firsts(self) -> list[int]:
        """Return the number of each step's first tensor, and last the number of all tensors."""
        steps = [s.step for s in self.trace]
        return [bisect_left(steps, k) for k in range(self.trace.steps)] + [len(steps)]

    @cached_property
    def first_nan(self) -> Seen | None:
        """Return the first tensor with a NaN of a run whose last logits hold one, else None."""
        last = next((s for s in reversed(self.trace.seen) if s.path == "logits"), None)
        return next(filter(holds_nan, self.trace.seen), None) if last is not None and holds_nan(last) else None

    def measure(self, n: int, value: Tensor) -> Stats:
        """Return the stats of tensor `n`. Computes them once."""
        if n not in self.measures:
            self.measures[n] = stats_of(value)
        return self.measures[n]

    def latest(self, n: int) -> Seen | None:
        """Return record `n` if its value was computed again and is still kept, else None."""
        if self.budget is not None:
            self.budget.use((self.id, n))
        return self.again.get(n)

    def renew(self, n: int, find: Callable[[], Seen]) -> Seen:
        """Compute record `n` again by `find`, and keep it within the budget."""
        size = prod(self.trace.seen[n].shape) * self.trace.seen[n].dtype.itemsize
        if self.budget is not None and size <= self.budget.limit:  # first, so that the old and the new are never there together
            self.budget.shrink(self.budget.limit - size, (self.id, n))
        record = find()
        if self.budget is not None:
            self.again[n] = record
            self.budget.put((self.id, n), held_by((record,), self.apart), lambda: self.again.pop(n, None))
        return record

    def seen(self, n: int) -> Seen:
        """Return record `n`. A RequestError if there is none."""
        if not 0 <= n < len(self.trace.seen):
            raise RequestError("server.tensor", 404, "n", found=n, last=len(self.trace.seen) - 1)
        return self.trace.seen[n]


def kept(s: Seen) -> bool:
    """True if the record has its value."""
    return isinstance(s.value, Tensor) and not s.value.is_meta


def holds_nan(s: Seen) -> bool:
    """True if the record's value, or the stats of one that was not kept, has a NaN."""
    return s.value.stats is not None and s.value.stats.nan > 0 if isinstance(s.value, LetGo) else has_nan(s.value)


def summed(run: Run, s: Seen) -> bool:
    """True if the record's cells have terms. A trace from a file holds values alone, and an edit has none."""
    if s.source == "edited":
        return False
    return s.terms is not None or s.later is not None or (run.request is not None and not (isinstance(s.value, Tensor) and s.value.is_meta))


class RunStore:
    """The latest runs by their ids, within the limits."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.budget = limits, Budget(limits.kept)
        self.by_id: OrderedDict[str, Run] = OrderedDict()

    def put(self, run: Run) -> Run:
        """Keep a run and drop the least recently used. If it alone exceeds the budget its terms go, and are computed again on request."""
        if run.id in self.by_id:
            return self[run.id]
        if sum((memory := run.memory).values()) > self.limits.kept:
            for s in run.trace.seen:
                s.terms = None
            memory = run.memory
        with self.budget.lock:
            self.by_id[run.id], run.budget = run, self.budget
            self.budget.put((run.id, None), memory, lambda: self.by_id.pop(run.id, None))
            while len(self.by_id) > self.limits.runs:
                self.budget.drop((next(iter(self.by_id)), None))
        return run

    def __getitem__(self, id: str) -> Run:
        with self.budget.lock:
            if id not in self.by_id:
                raise RequestError("server.run", 404, "run", found=id)
            self.by_id.move_to_end(id)
            self.budget.use((id, None))
            return self.by_id[id]

    def __len__(self) -> int:
        return len(self.by_id)
