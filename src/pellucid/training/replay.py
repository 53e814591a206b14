"""A run of training from its folder: its log, its states, and any step of it taken again, bit for bit.

replay = Replay("run")
replay.record(137)         # the newest kept state before it, on to step 136, then the step with every tensor and its gradient

Each step on the way must have the documents, loss and gradient of its log line; the first that differs ends it, by name.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoint.disk import read_whole
from pellucid.checkpoint.json_file import parse_object
from pellucid.checkpoint.opening import recorded_runs
from pellucid.errors import TrainError
from pellucid.families.family import Family
from pellucid.messages import say
from pellucid.nn.transformer import Decoder
from pellucid.training.aim import criterion_of
from pellucid.training.balance import Balance, balance_of
from pellucid.training.criterion import Figures, added, losses
from pellucid.training.identity import require
from pellucid.training.loop import LOG_BYTES, STEP, TrainingRun, feed, moments_of
from pellucid.training.multi_token_loss import PLACE
from pellucid.training.objectives import Document, Masked, Objective, objective_of
from pellucid.training.pipeline import DATA
from pellucid.training.pipeline import examples as examples_of
from pellucid.training.recipe import Recipe, read_recipe
from pellucid.training.recorded_step import RecordedStep, record_step
from pellucid.training.run_folder import RECIPE, RUN, TOKENIZER, RunFile, read_run
from pellucid.training.saves import check_state, read_state, states
from pellucid.training.shards import load_tokenizer, read_index, read_shards
from pellucid.training.start import Start, fresh
from pellucid.training.start import origin as origin_of
from pellucid.training.text_objective import of_shards
from pellucid.training.text_rows import TrainingRows
from pellucid.training.texts import Texts
from pellucid.training.trained_weights import changing
from pellucid.training.watched import WatchedSteps
from pellucid.training.why import Why, why_moved

COMPARED = ("documents", "loss", "gradient")  # fields of a log line, in the order in which a step computes them; then modules' losses


class Replay:
    """A run, by its folder or the name of one that ships. Model, encoded documents and the place that was reached last are kept."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = recorded_runs().get(str(folder), Path(folder))
        self.about: RunFile = read_run(self.folder)
        self.sound = False  # the training is at the step that it says
        self.confirmed: set[int] = set()  # steps that were taken again with the log's numbers

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe that the run follows."""
        recipe = read_recipe(self.folder / RECIPE, self.about.root)
        steps = self.about.identity["settings"]["steps"]
        return recipe if recipe.length is None else replace(recipe, train=replace(recipe.train, steps=steps))

    @property
    def log(self) -> list[dict[str, Any]]:
        """The entries of log.jsonl, one for each step; a last line that a crash has torn is left out."""
        path = self.folder / "log.jsonl"
        if not path.exists():
            return []
        lines = read_whole(path, LOG_BYTES, TrainError).split(b"\n")[:-1]
        return [parse_object(line, f"{path}:{i}", TrainError) for i, line in enumerate(lines, 1) if STEP.match(line)]

    @property
    def states(self) -> list[int]:
        """The steps whose states are kept."""
        return [int(path.name) for path in states(self.folder / "saves")]

    @property
    def watched(self) -> WatchedSteps:
        """The steps that were recorded while the run trained, by their numbers."""
        return WatchedSteps(self.folder)

    @cached_property
    def objective(self) -> Objective:
        """The run's objective, with its tokenizer."""
        recipe = self.recipe
        if isinstance(recipe.data, Texts):
            shards = read_shards(self.folder / DATA, read_index(self.folder / DATA))
            return of_shards(shards, recipe.data)
        return objective_of(recipe.objective)(load_tokenizer(self.folder / TOKENIZER))

    @cached_property
    def beginning(self) -> Start:
        """The model before its first step, and what of it trains; `built` trains this very module."""
        return fresh(self.recipe, self.objective)

    @cached_property
    def examples(self) -> tuple[Sequence[Document], Sequence[Document]]:
        """What is trained on, and what is held out."""
        return examples_of(self.recipe, self.objective)

    @cached_property
    def built(self) -> tuple[TrainingRun, Family, dict[str, Any]]:
        """The training at its first step, with the model's family and the fields of its config.json."""
        recipe = self.recipe
        start = self.beginning
        family, hf, model = start.family, start.hf, start.model
        documents, origin = self.examples, origin_of(recipe, start)
        with self.threads():
            criterion = criterion_of(recipe, start, self.objective, documents, self.folder / DATA, self.rewards)
            run = TrainingRun(model.train(), self.objective, documents[0], recipe.train, self.folder, origin=origin, criterion=criterion)
        if what := require(self.folder / RUN, self.about.identity, run.identity, 0, inexact=True):
            raise TrainError("replay.machine", folder=self.folder, what=what)
        return run, family, hf

    @contextmanager
    def threads(self) -> Iterator[None]:
        """Compute with the run's number of threads, on which rounding depends."""
        before, own = torch.get_num_threads(), self.about.identity.get("threads")
        torch.set_num_threads(own if type(own) is int and own > 0 else before)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def record(self, step: int, only: str | Iterable[str] = "*", gradients: bool = True) -> RecordedStep:
        """Take a step of the run again, and record it with every tensor that `only` names and its gradient.

        A TrainError if a step on the way, or the one after it, has another loss than the log says.
        """
        log, run = self.lines(step), self.to(step - 1)
        with self.exact():
            recorded = record_step(run, self.numbers(step), str(self.folder), only, gradients)
            self.confirm(recorded.entry, log)
        return recorded

    def why(self, path: str, cell: Sequence[int], step: int) -> Why:
        """Return why parameter `path` moved at `cell` in a step of the run: its gradient as a sum over tokens, and the parts of the move.

        Its first call for a step takes the step, to compare it with the log.
        """
        log, run = self.lines(step), self.to(step - 1)
        with self.threads():
            why = why_moved(run, self.numbers(step), path, cell)
        if step not in self.confirmed:
            with self.exact():
                self.confirm(run.one(self.numbers(step)), log)
        return why

    def to(self, step: int) -> TrainingRun:
        """Return the training after `step` steps, 0 before the first: from the newest kept state, each step compared with the log."""
        run, start = self.built[0], self.start(step)
        if not (self.sound and start <= run.step <= step):
            self.go(start)
        self.advance(step)
        return run

    def advance(self, step: int) -> None:
        """Take the steps up to `step`, each compared with the log."""
        run, log = self.built[0], self.lines(step) if step else {}
        steps = feed(run.documents, run.s, run.step)
        with self.exact():
            while run.step < step:
                compare(run.one(next(steps)), log)

    def check_stretch(self, first: int, last: int) -> None:
        """Take the steps between two kept states again, 0 for the first weights. A TrainError if they end in another state."""
        run, path = self.built[0], state_at(self.folder, last)
        check_state(path)
        self.go(first)
        self.advance(last)
        weights, moments, _ = read_state(path)
        own: dict[str, Tensor] = {name: t.detach() for name, t in run.weights.changing().items()} | moments_of(run)
        for name, t in (weights | moments).items():
            if name not in own or not torch.equal(own[name], t):
                raise TrainError("replay.state", path=path, tensor=name, first=first)

    def text(self, number: int) -> str:
        """Return the text of a training document; a source and its target with an arrow between."""
        objective = self.objective
        kept = isinstance(objective, Masked)  # whose blanks are tokens of the vocabulary
        parts = [objective.tokenizer.decode(ids, skip_special_tokens=not kept) for ids in self.built[0].documents[number][:2] if ids]
        return (" → " if objective.kind is not Decoder else "").join(parts)

    def source(self, number: int) -> str:
        """Return where a training document comes from: its file and its place there, or its number among the facts."""
        documents = self.built[0].documents
        if not isinstance(documents, TrainingRows):
            return say("why.fact", number=number)
        name, place = documents.source(number)
        return say("why.text", name=name, number=place + 1)

    def numbers(self, step: int) -> list[int]:
        """Return the numbers of a step's documents."""
        run = self.built[0]
        return next(feed(run.documents, run.s, step - 1))

    def rewards(self, step: int) -> list[float]:
        """Return the rewards of a step that the log has; [] if it has none."""
        known = self.lines(step)[step].get("rewards")
        sound = isinstance(known, list) and all(type(x) in (int, float) for x in known)
        return known if sound and known is not None else []

    def lines(self, step: int) -> dict[int, dict[str, Any]]:
        """Return the log by step. A TrainError if it does not have this one."""
        log = {entry["step"]: entry for entry in self.log}
        if step not in log:
            raise TrainError("replay.step", folder=self.folder, step=step, last=max(log, default=0))
        return log

    def start(self, step: int) -> int:
        """Return the newest kept state to go on from to `step`, 0 for the first weights. A TrainError if there is none."""
        since, kept = self.about.since, self.states
        known = [number for number in [*([] if since else [0]), *kept] if since <= number <= step]
        if not known and step < since:
            raise TrainError("replay.elsewhere", step=step + 1, since=since)
        if not known:
            raise TrainError("replay.early", step=step + 1, first=min((number for number in kept if number > step), default=since))
        return max(known)

    def go(self, start: int) -> None:
        """Put the training at a kept state, or at the first weights, which follow from the seed."""
        run, self.sound = self.built[0], False
        if start:
            path = state_at(self.folder, start)
            check_state(path)
            run.load(path, inexact=True)
        else:
            first = changing(fresh(self.recipe, self.objective).model)
            with torch.no_grad():
                for name, t in run.weights.changing().items():
                    t.copy_(first[name])
            run.weights.publish()
            run.optimizer.state.clear()
            run.step = run.tokens = run.skipped = 0
        run.balance = balance_of(run.model, run.s)
        self.sound = True

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Take steps as the run did. After an error the training stands nowhere."""
        self.sound = False
        with self.threads():
            yield
        self.sound = True

    def confirm(self, entry: dict[str, Any], log: dict[int, dict[str, Any]]) -> None:
        """Compare a step with the log, and the loss of the next step, which alone shows that the weights moved as they did."""
        compare(entry, log)
        run = self.built[0]
        if "loss" in log.get(run.step + 1, {}):  # a skipped step has none
            balance = Balance(run.model, run.s.correction, run.s.auxiliary)
            parts = run.batches(self.numbers(run.step + 1))
            total, figures = 0.0, Figures()
            for part in losses(run.criterion, run.model, parts, balance, run.draws()):
                total += float(part.loss.detach())  # in the order of `backward`; sum() of Python 3.12 rounds otherwise
                figures = added(figures, part.figures)
            compare({"step": run.step + 1, "loss": total, **figures}, log)
        self.confirmed.add(entry["step"])


def state_at(folder: Path, step: int) -> Path:
    """Return the folder of a kept state."""
    return next(path for path in states(folder / "saves") if int(path.name) == step)


def compare(entry: dict[str, Any], log: dict[int, dict[str, Any]]) -> None:
    """Raise TrainError for the first field of a step taken again that is another than in the log."""
    logged = log[entry["step"]]
    if "documents" in entry and entry.get("skipped") != logged.get("skipped"):
        what = {"logged": logged.get("skipped", "-"), "now": entry.get("skipped", "-")}
        raise TrainError("replay.differs", step=entry["step"], what="skipped", **what)
    for name in (*COMPARED, *(name for name in logged if name.startswith(f"{PLACE}."))):
        if name in logged and name in entry and logged[name] != entry[name]:
            raise TrainError("replay.differs", step=entry["step"], what=name, logged=logged[name], now=entry[name])
