"""Steps that a run records while it trains, as the [watch] table of its recipe says.

    run/watch/000000100/   index.jsonl  000000.safetensors   a trace, with the gradient of each tensor beside it
                           step.json                          its log entry, its documents, and what it did to each parameter
                           updates.safetensors  tokens.safetensors  prompts/0/ ...

A step is written under another name and renamed, so that a kill leaves no half of one.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoint.disk import reason, sync
from pellucid.checkpoint.json_file import TABLE_BYTES, read_object
from pellucid.checkpoint.safetensors_file import read_header, read_tensor, write
from pellucid.errors import TraceError, TrainError
from pellucid.tracing import Trace, load_trace, watch
from pellucid.training.loop import TrainingRun, feed
from pellucid.training.objectives import Causal
from pellucid.training.recipe import Recipe
from pellucid.training.recipe_parts import WatchSettings
from pellucid.training.recorded_step import ParameterStep, RecordedStep, record_step
from pellucid.training.saves import states

WATCH, STEP, UPDATES, TOKENS, PROMPTS = "watch", "step.json", "updates.safetensors", "tokens.safetensors", "prompts"
SCHEMA = 1


class StepRecorder:
    """Takes the steps of a run, and records those that the recipe's [watch] names. A TrainError for tokens or prompts that cannot be."""

    def __init__(self, run: TrainingRun, recipe: Recipe, settings: WatchSettings) -> None:
        self.run, self.name, self.settings, self.root = run, recipe.name, settings, run.folder / WATCH
        self.ids = {text: run.objective.tokenizer.encode(text, add_special_tokens=False).ids for text in settings.tokens}
        for text, ids in self.ids.items():
            if len(ids) != 1:
                raise TrainError("watch.token", path=recipe.path, found=repr(text), count=len(ids))
        if settings.prompts and not isinstance(run.objective, Causal):
            raise TrainError("recipe.field", path=recipe.path, field="watch.prompts", found=recipe.objective, allowed="causal, prefix")
        if settings.tensors:  # a pattern that matches nothing is an error before the first step
            batch = run.batches(next(feed(run.documents, run.s, run.step)))[0]
            with torch.no_grad(), watch(run.model, only=settings.tensors, inside="listed", keep=lambda x: None):
                run.criterion.judge(run.model, batch)
        # a prompt has no targets, so none of the tensors that the loss alone makes
        self.of_prompts = [p for p in settings.tensors if self.in_prompts(p)] if settings.prompts and settings.tensors else ["*"]
        for late in [path for path in states(self.root) if int(path.name) > run.step]:  # of steps that are taken again
            shutil.rmtree(late)
        before = states(self.root)
        self.last = read_tensors(before[-1] / UPDATES) if before else None

    def wants(self, step: int) -> bool:
        """True if this step is recorded."""
        s = self.settings
        return step <= s.first or (s.every is not None and step % s.every == 0)

    def take(self, numbers: list[int]) -> dict[str, Any]:
        """Take the run's step on these documents, record it if it is wanted, and return its log entry."""
        if not self.wants(self.run.step + 1):
            return self.run.one(numbers)
        return self.run.attempt(self.record, numbers)

    def record(self, numbers: list[int]) -> dict[str, Any]:
        """Take the run's step on these documents, record it, and return its log entry."""
        s = self.settings
        recorded = record_step(self.run, numbers, self.name, s.tensors, s.gradients, self.last)
        self.last = recorded.updates
        embed = self.run.weights.own(self.run.model.get_parameter("embed.weight")).detach()
        recorded.tokens = {text: embed[id].clone() for text, (id,) in self.ids.items()}
        recorded.prompts = [self.prompt(text, self.of_prompts) for text in s.prompts]
        write_step(self.root, recorded)
        return recorded.entry

    def in_prompts(self, pattern: str) -> bool:
        """True if a forward without targets has a tensor of this pattern, which a step has."""
        try:
            self.prompt(self.settings.prompts[0], [pattern])
        except TraceError:
            return False
        return True

    def prompt(self, text: str, only: Sequence[str]) -> Trace:
        """Return the trace of a prompt after the step, of some of the tensors that a forward without targets has."""
        model, objective = self.run.model, self.run.objective
        assert isinstance(objective, Causal)
        ids = torch.tensor([objective.tokenizer.encode(text).ids])
        model.eval()
        with torch.no_grad(), watch(model, only=only) as seen:
            model(ids, objective.step(ids, torch.tensor([ids.shape[1]])))
        model.train()
        return Trace(self.name, text, ids[0].tolist(), seen=seen.seen)


def write_step(root: Path, recorded: RecordedStep) -> None:
    """Write a recorded step into its folder, 000000100 for step 100."""
    final, part = root / f"{recorded.number:09d}", root / f".{recorded.number:09d}.part"
    try:
        shutil.rmtree(part, ignore_errors=True)
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        save_step(recorded, part)
        sync(part)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(part, final)
        sync(root)
    except OSError as fault:
        raise TrainError("train.save", path=final, reason=reason(fault)) from None


def save_step(recorded: RecordedStep, folder: Path) -> None:
    """Write a recorded step into a folder of its own: a trace, and beside it what only a step of training has."""
    recorded.save(folder)
    about = {
        "schema": SCHEMA,
        "number": recorded.number,
        "entry": recorded.entry,
        "documents": recorded.documents,
        "parameters": {path: one._asdict() for path, one in recorded.parameters.items()},
        "tokens": list(recorded.tokens),
        "loads": recorded.loads,
    }
    (folder / STEP).write_text(json.dumps(about) + "\n", encoding="utf-8")
    sync(folder / STEP)
    write(folder / UPDATES, recorded.updates)
    write(folder / TOKENS, {str(i): row for i, row in enumerate(recorded.tokens.values())})
    for i, trace in enumerate(recorded.prompts):
        trace.save(folder / PROMPTS / str(i))


def load_step(folder: Path) -> RecordedStep:
    """Read a recorded step from its folder. A TrainError for a folder that is none."""
    about = read_object(folder / STEP, TABLE_BYTES, TrainError)
    trace = load_trace(folder)
    try:
        out = RecordedStep(trace.model, seen=trace.seen, fed=trace.fed, torn=trace.torn, aliases=trace.aliases)
        out.number, out.entry, out.documents = about["number"], about["entry"], about["documents"]
        out.parameters = {path: ParameterStep(**one) for path, one in about["parameters"].items()}
        out.loads = about.get("loads", {})
        out.updates = read_tensors(folder / UPDATES)
        rows = read_tensors(folder / TOKENS)
        out.tokens = {text: rows[str(i)] for i, text in enumerate(about["tokens"])}
        prompts = folder / PROMPTS
        out.prompts = [load_trace(prompts / str(i)) for i in range(len(list(prompts.iterdir())) if prompts.is_dir() else 0)]
    except (KeyError, TypeError, AttributeError):
        raise TrainError("run.damaged", path=folder / STEP) from None
    return out


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Return every tensor of a safetensors file."""
    return {name: read_tensor(entry) for name, entry in read_header(file).items()}


class WatchedSteps(Mapping[int, RecordedStep]):
    """The recorded steps of a run by their numbers; each is read from the disk when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / WATCH

    def __getitem__(self, step: int) -> RecordedStep:
        folder = self.root / f"{step:09d}"
        if not folder.is_dir():
            raise TrainError("watch.step", step=step, folder=self.root, known=", ".join(map(str, self)) or "-")
        return load_step(folder)

    def __iter__(self) -> Iterator[int]:
        return iter([int(path.name) for path in states(self.root)])

    def __len__(self) -> int:
        return len(states(self.root))

    def __repr__(self) -> str:
        return f"WatchedSteps({list(self)})"
