"""The training loop: documents in a seeded order, an objective's loss, AdamW, and states that resume bit for bit.

A batch depends on the seed and the step alone, so a resumed run trains on the same batches as an uninterrupted one.
"""

import json
import math
import os
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pellucid.checkpoint.disk import read_whole, reason, replacing, sync
from pellucid.errors import NotFiniteError, TrainError
from pellucid.messages import say
from pellucid.nn.transformer import Decoder, EncoderDecoder
from pellucid.sharding import UNSPLIT, Sharding
from pellucid.training.balance import Balance, balance_of
from pellucid.training.criterion import Criterion, CrossEntropy, Figures, StepPart, added, losses, targets_in
from pellucid.training.dropout import Dropout
from pellucid.training.held_out import HeldOut
from pellucid.training.identity import digest, identity, require
from pellucid.training.not_finite import first_broken
from pellucid.training.objectives import Batch, Document, Objective
from pellucid.training.optimizers import optimizer
from pellucid.training.recipe import TrainSettings
from pellucid.training.recompute import Recompute
from pellucid.training.save_thread import SaveThread
from pellucid.training.saves import newest, read_state, save_state, set_aside
from pellucid.training.schedule import learning_rate
from pellucid.training.text_rows import TrainingRows
from pellucid.training.trained_weights import weights_of

NEW: Mapping[str, Any] = {}  # of a model with first weights
LOG_BYTES = 1 << 32
LOG_ONLY = {"documents", "seconds", "rewards"}
"""Fields of a log line that progress does not show."""
STEP = re.compile(rb'\{"step": ([0-9]+)[,}].*\}$')


def initialise(model: nn.Module, layers: int, spread: float, seed: int) -> None:
    """Set the first weights as GPT-2 does: normal, smaller by √(2·layers) where they write to the residual; biases zero."""
    rng = torch.Generator().manual_seed(seed)
    for path, p in model.named_parameters():
        writes = path.removesuffix(".weight").endswith((".o", ".down"))
        with torch.no_grad():
            if p.ndim >= 2:
                p.normal_(0.0, spread / math.sqrt(2 * layers) if writes else spread, generator=rng)
            elif path.endswith("bias"):
                p.zero_()


def batches(documents: Sequence[Document], s: TrainSettings) -> Iterator[list[int]]:
    """Yield the indices of each step's documents, forever. A pool of batches is sorted by length, so that little is padded."""
    epoch = 0
    while True:
        order = list(range(len(documents)))
        rng = random.Random(f"{s.seed}:{epoch}")
        rng.shuffle(order)
        for start in range(0, len(order), s.batch * s.pool):
            pool = sorted(order[start : start + s.batch * s.pool], key=lambda i: sum(map(len, documents[i][:2])))
            cut = [pool[i : i + s.batch] for i in range(0, len(pool), s.batch)]
            rng.shuffle(cut)
            yield from cut
        epoch += 1


def feed(documents: Sequence[Document], s: TrainSettings, step: int) -> Iterator[list[int]]:
    """Yield the indices of each step's documents from `step` on: those of texts are computed, others drawn from the first step on."""
    return documents.steps(step, s.batch) if isinstance(documents, TrainingRows) else islice(batches(documents, s), step, None)


def micro_batches(numbers: list[int], micro: int | None) -> list[list[int]]:
    """Return the documents of a step in groups of at most `micro`, whose gradients are added; all in one where None."""
    return [numbers[i : i + micro] for i in range(0, len(numbers), micro)] if micro else [numbers]


class Differentiated(NamedTuple):
    """A step whose gradients are computed and whose weights are not changed yet. numbers: its documents.  batches: its parts.

    figures: of the criterion.  targets: of the step.
    """

    numbers: list[int]
    loss: float
    figures: Figures
    batches: list[Batch]
    targets: int
    started: float


class TrainingRun:
    """A training run in its own folder: log.jsonl with a line a step, saves/. Parameters that take no gradient stay as they are.

    held_out: its loss is logged too.  origin: what the numbers depend on because of where the model is from.  criterion: of its loss, by
    default the cross-entropy.  sharding: of the model over ranks; each reads its part of a step's documents, and the first one writes.
    """

    def __init__(
        self,
        model: Decoder | EncoderDecoder,
        objective: Objective,
        documents: Sequence[Document],
        s: TrainSettings,
        folder: Path,
        held_out: HeldOut | None = None,
        origin: Mapping[str, Any] = NEW,
        criterion: Criterion | None = None,
        sharding: Sharding = UNSPLIT,
    ) -> None:
        check(objective, documents, model.config.vocab, model.config.positions)
        self.held_out, self.criterion = held_out, criterion or CrossEntropy(s.smoothing)
        self.model, self.objective, self.documents, self.s, self.folder = model, objective, documents, s, folder
        self.sharding, self.ranks = sharding, sharding.ranks
        self.balance, self.dropout = balance_of(model, s), Dropout(model, s.seed)
        self.weights, self.recompute = weights_of(model, s, sharding), Recompute(model, s.recompute)
        self.optimizer, self.step, self.tokens = optimizer(self.weights, s, sharding), 0, 0
        self.saves = SaveThread()
        self.skipped = 0  # steps in a row, up to the last one, that changed nothing
        self.names_broken = True  # that an error names the first broken tensor, for which the step runs again
        own = {"ranks": str(self.ranks), **self.criterion.identity, **origin}
        self.identity = {**identity(model.config, objective, documents, s), **own}

    def train(
        self,
        progress: Callable[[dict[str, Any]], None],
        stopped: Callable[[], bool] = lambda: False,
        on: Callable[[dict[str, Any]], None] = lambda entry: None,
        take: Callable[[list[int]], dict[str, Any]] | None = None,
    ) -> bool:
        """Train to the last step. Return True there, False if `stopped()` said to stop, with the state saved.

        on: called with each log entry.  take: takes a step on these documents and returns its entry, by default `one`.
        """
        with self.saves:
            return self.stepped(progress, stopped, on, take or self.one)

    def stepped(
        self,
        progress: Callable[[dict[str, Any]], None],
        stopped: Callable[[], bool],
        on: Callable[[dict[str, Any]], None],
        take: Callable[[list[int]], dict[str, Any]],
    ) -> bool:
        """Take the steps of `train`."""
        steps = feed(self.documents, self.s, self.step)
        self.model.train()
        started, before = time.monotonic(), self.tokens
        while self.step < self.s.steps:
            entry = take(next(steps))
            if self.held_out is not None and (self.step % self.held_out.every == 0 or self.step == self.s.steps):
                with self.ranks.computing():
                    entry |= self.held_out.entry(self.model)
            self.log(entry)
            on(entry)
            if self.step % self.s.log_every == 0 or self.step == self.s.steps:
                rate = (self.tokens - before) / (time.monotonic() - started)
                progress({k: v for k, v in entry.items() if k not in LOG_ONLY} | {"tokens_per_second": round(rate, 1)})
            halt = self.ranks.any(stopped())
            if halt or self.step % self.s.save_every == 0 or self.step == self.s.steps:
                self.save()
            if halt:
                return False
        return True

    def parts(self, numbers: list[int]) -> list[list[int]]:
        """Return the documents of each micro-batch of a step on these: of this data rank's part of its rows."""
        micro = self.documents.micro_batches if isinstance(self.documents, TrainingRows) else micro_batches
        if self.ranks.data > 1:
            rows, n, of = micro(numbers, 1), self.ranks.data_rank, self.ranks.data
            numbers = [i for row in rows[len(rows) * n // of : len(rows) * (n + 1) // of] for i in row]
        return [part for part in micro(numbers, self.s.micro) if part]

    def batches(self, numbers: list[int]) -> list[Batch]:
        """Return the micro-batches of a step on these documents."""
        parts = [[self.documents[i] for i in part] for part in self.parts(numbers)]
        return self.criterion.batches(self.model, self.objective, parts, self.step)

    def draws(self) -> Dropout:
        """Return the dropout of the step that is taken next."""
        self.dropout.step = self.step
        return self.dropout

    def one(self, numbers: list[int]) -> dict[str, Any]:
        """Take one step on these documents. If loss or gradient is not finite, it changes no weight, and is skipped or a TrainError."""
        return self.attempt(lambda numbers: self.update(self.backward(numbers)), numbers)

    def attempt(self, take: Callable[[list[int]], dict[str, Any]], numbers: list[int]) -> dict[str, Any]:
        """Return the log entry of a step that `take` takes. One that is not finite is skipped where the recipe says so, and counted."""
        started = time.perf_counter()
        skips = self.s.on_nan == "skip"
        self.names_broken = not skips
        try:
            entry = take(numbers)
        except NotFiniteError as fault:
            if not skips:
                raise
            if self.skipped >= self.s.skips:
                count, self.skipped = self.skipped, 0
                self.step -= count  # the weights are those of that step
                self.save()
                self.saves.wait()
                raise TrainError("train.skips", step=fault.values["step"], count=count, saved=self.step) from None
            self.balance.forget()
            self.step, self.skipped = self.step + 1, self.skipped + 1
            taken = {"documents": digest(json.dumps(numbers))[:16], "seconds": round(time.perf_counter() - started, 6)}
            return {"step": self.step, "skipped": fault.key.removeprefix("train."), "tokens": self.tokens, **taken}
        finally:
            self.names_broken = True
        self.skipped = 0
        return entry

    def first_broken(self, numbers: list[int], batches: list[Batch], gradient: bool) -> str:
        """Return what an error says of the first broken tensor of a step; of its documents if there is none. "" if it is to be skipped."""
        if not self.names_broken:
            return ""
        broken = first_broken(self, numbers, batches, gradient)
        if broken is None:
            return say("train.batch", documents=", ".join(map(str, numbers[:8])))
        return say("train.first", path=broken.path, document="-" if broken.document is None else broken.document)

    def backward(self, numbers: list[int]) -> "Differentiated":
        """Compute the loss of a step on these documents, and its gradients. A TrainError if the loss is not finite."""
        started, value, figures = time.perf_counter(), 0.0, Figures()
        self.weights.clear()  # before answers are drawn, which take memory of their own
        parts = self.batches(numbers)
        targets, units = self.ranks.totals([sum(map(targets_in, parts)), sum(map(self.criterion.units, parts))])
        with self.ranks.computing():
            for part in self.forwards(numbers, parts, self.balance, int(units)):
                value, figures = value + float(part.loss.detach()), added(figures, part.figures)
                broken = not math.isfinite(value)
                if self.ranks.any_beside(broken) if self.ranks.shard > 1 else broken:  # the next forward needs all that share weights
                    break
                self.recompute.give_back()
                part.differentiated.backward()
        if self.ranks.data > 1:
            names = self.criterion.figures
            value, *sums = self.ranks.totals([value, *(figures.get(name, 0.0) for name in names)])
            figures = dict(zip(names, sums, strict=True))
        if not math.isfinite(value):
            raise NotFiniteError("train.loss", step=self.step + 1, value=value, where=self.first_broken(numbers, parts, False))
        self.weights.sum_gradients(self.sharding)
        return Differentiated(numbers, value, figures, parts, int(targets), started)

    def forwards(self, numbers: list[int], parts: list[Batch], balance: Balance, units: int | None = None) -> Iterator[StepPart]:
        """Yield each part of a step on the documents `numbers`. Where data ranks share weights out, one with fewer parts than another runs
        its last one, or a document, once more and counts none of it: a block's weights are there while all of them run it.
        """
        if idle := self.ranks.most(len(parts)) - len(parts):
            batch = [*parts, *self.criterion.batches(self.model, self.objective, [[self.documents[numbers[0]]]], self.step)][-1]
        yield from losses(self.criterion, self.model, parts, balance, self.draws(), units)
        for _ in range(idle):
            nothing = self.model(*batch.inputs).sum() * 0
            yield StepPart(nothing, nothing, {})

    def update(self, given: "Differentiated") -> dict[str, Any]:
        """Change the weights by the gradients of a step, and return its log entry. A TrainError if the gradient is not finite."""
        numbers, value, figures, parts, targets, started = given
        rate = learning_rate(self.step, self.s)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        norm = self.weights.clip(self.sharding, self.s.clip)
        if not math.isfinite(norm):
            raise NotFiniteError("train.gradient", step=self.step + 1, value=norm, where=self.first_broken(numbers, parts, True))
        self.weights.step(self.optimizer)
        load = self.balance.correct(self.ranks)
        self.step += 1
        self.tokens += targets
        done = {"step": self.step, "loss": value, "learning_rate": rate, "gradient": norm, "tokens": self.tokens}
        taken = {"documents": digest(json.dumps(numbers))[:16], "seconds": round(time.perf_counter() - started, 6)}
        return {**done, **load, **figures, **self.criterion.noted(parts), **taken}

    def log(self, entry: dict[str, Any]) -> None:
        if not self.ranks.first:
            return
        try:
            with (self.folder / "log.jsonl").open("a", encoding="utf-8") as f:
                f.write(json.dumps(entry) + "\n")
        except OSError as fault:
            raise TrainError("train.save", path=self.folder / "log.jsonl", reason=reason(fault)) from None

    def unlog(self) -> None:
        """Drop log lines of steps after the resumed state, and a last line torn by a crash. The log is replaced atomically, and not written
        if nothing is dropped.
        """
        path = self.folder / "log.jsonl"
        if not os.path.lexists(path):
            return
        log = read_whole(path, LOG_BYTES, TrainError)
        kept = b"".join(line + b"\n" for line in log.split(b"\n")[:-1] if (match := STEP.match(line)) and int(match[1]) <= self.step)
        if kept != log:
            with replacing(path, TrainError) as part:
                part.write_bytes(kept)

    def save(self) -> None:
        """Save everything that the next step depends on, with the log so far: the same files from any number of ranks."""
        moments = self.joined({name: (name.split(":")[0], t) for name, t in moments_of(self).items()})
        weights = self.joined({path: (path, t.detach()) for path, t in self.weights.changing().items()})
        if not self.ranks.first:
            return
        about, step = {"tokens": self.tokens, "skipped": self.skipped, "identity": self.identity}, self.step
        if self.s.save_beside:
            self.saves.wait()  # before what it writes is copied over
            weights, moments = self.saves.copied("weight", weights), self.saves.copied("moment", moments)

        def save() -> None:
            try:
                sync(self.folder / "log.jsonl")
            except OSError as fault:
                raise TrainError("train.save", path=self.folder / "log.jsonl", reason=reason(fault)) from None
            save_state(self.folder / "saves", step, weights, moments, about, self.s.keep)

        if self.s.save_beside:
            self.saves.start(save)
        else:
            save()

    def joined(self, parts: Mapping[str, tuple[str, Tensor]]) -> dict[str, Tensor]:
        """Return by name the tensors that the ranks' parts make, on the first rank alone, which keeps them. parts: with a weight's path."""
        every = ((name, self.sharding.joined(path, t)) for name, (path, t) in parts.items())
        return {name: t for name, t in every if self.ranks.first}

    def resume(self, restart: bool = False, inexact: bool = False) -> list[str]:
        """Resume from the newest state that verifies, or start if none was saved. Returns the faults of later states, moved aside.

        If states were saved and none verifies: a TrainError, or with `restart` a fresh start, and the log is moved aside too. inexact:
        resume a state of another machine too, with a warning.
        """
        newest_state, faults = newest(self.folder / "saves")
        warnings = list(faults.values())
        if newest_state is None:
            if faults and not restart:
                raise TrainError("train.lost", folder=self.folder / "saves", reason="; ".join(warnings), aside=self.folder / "aside")
            self.clear((*faults, self.folder / "log.jsonl"))
            return warnings
        if what := self.load(newest_state, inexact):
            warnings.append(say("train.inexact", path=newest_state, what=what))
        self.clear(faults)
        if self.ranks.first:
            self.unlog()
        return warnings

    def clear(self, paths: Iterable[Path]) -> None:
        """Move these files and folders of the run aside, on the first rank alone."""
        for path in paths:
            if self.ranks.first and path.exists():
                set_aside(self.folder, path)

    def load(self, folder: Path, inexact: bool = False) -> str:
        """Go to a saved state of this run. A TrainError for another run's.

        inexact: of another machine too; its differences are returned as text.
        """
        weights, moments, state = read_state(folder)
        what = require(folder, state["identity"], self.identity, state["step"], inexact)
        with torch.no_grad():
            for path, t in self.weights.changing().items():
                t.copy_(self.sharding.part(path, weights[path]))
            self.weights.publish()
            for path, p in self.weights.named_parameters():
                own = {k.split(":")[1]: self.sharding.part(path, v).clone() for k, v in moments.items() if k.split(":")[0] == path}
                self.optimizer.state[p] = own
        self.step, self.tokens, self.skipped = state["step"], state["tokens"], state.get("skipped", 0)
        return what


def moments_of(run: TrainingRun) -> dict[str, Tensor]:
    """Return the optimizer's numbers of each parameter, by its path and their name."""
    state = run.optimizer.state
    return {f"{path}:{k}": v for path, p in run.weights.named_parameters() for k, v in state[p].items()}


def check(objective: Objective, documents: Sequence[Document], vocab: int, positions: int | None) -> None:
    """Raise TrainError for documents without rows, too long for the model, or with ids outside the vocabulary."""
    if isinstance(documents, TrainingRows):  # whose ids were checked when the shards were read
        return documents.check(positions)
    if not documents:
        raise TrainError("train.empty")
    for number, document in enumerate(documents):
        if not 1 <= (rows := objective.rows(document)) <= (positions or math.inf):
            raise TrainError("train.length", number=number, rows=rows, most=positions or "∞")
        if wrong := [i for ids in document[:2] for i in ids if not 0 <= i < vocab]:
            raise TrainError("train.id", number=number, id=wrong[0], last=vocab - 1)
