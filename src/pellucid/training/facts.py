"""When each fact was learnt: the same held-out questions, asked greedily after each evaluation of a run.

    run/eval/questions.json     prompt, right answers, relation and language of each
    run/eval/000000500.json     what the model wrote to each after step 500, and whether it was right

An evaluation draws nothing and changes no weight, so a run has the same bits with and without it.
"""

import json
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from pellucid.checkpoint.disk import reason, replacing
from pellucid.checkpoint.json_file import TABLE_BYTES, read_object
from pellucid.errors import TrainError
from pellucid.training.objectives import Data, Objective
from pellucid.training.quiz import Question

EVAL, QUESTIONS = "eval", "questions.json"
SCHEMA = 1


class FactHistory(NamedTuple):
    """What became of each question. steps: of the evaluations.  right: of each question, whether it was right after each."""

    questions: list[Question]
    steps: list[int]
    right: list[list[bool]]

    def learnt(self) -> list[int | None]:
        """Return the step after which each question was first right, None if it never was."""
        return [next((step for step, one in zip(self.steps, own, strict=True) if one), None) for own in self.right]

    def forgotten(self) -> list[int]:
        """Return how often each question was right and then no longer."""
        return [sum(before and not after for before, after in pairwise(own)) for own in self.right]


class FactQuiz:
    """At most `count` of the questions of a corpus, evenly apart, asked after steps of a run in `folder`. every: the distance of steps."""

    def __init__(self, objective: Objective, data: Data, count: int, every: int, last: int, folder: Path) -> None:
        every_question = objective.questions(data)
        self.questions = every_question[:: -(-len(every_question) // count)]
        self.objective, self.every, self.last, self.root = objective, every, last, folder / EVAL

    def due(self, step: int) -> bool:
        """True if the questions are asked after this step."""
        return step % self.every == 0 or step == self.last

    def begin(self, step: int) -> None:
        """Write the questions, and drop answers of steps after `step`, which are taken again. None may be left of other questions."""
        content = {"schema": SCHEMA, "questions": [vars(q) for q in self.questions]}
        text = json.dumps(content, ensure_ascii=False) + "\n"
        try:
            file = self.root / QUESTIONS
            if self.root.is_dir() and (not file.is_file() or file.read_text(encoding="utf-8") != text):
                shutil.rmtree(self.root)
            self.root.mkdir(exist_ok=True)
            for late in [path for path in answered(self.root) if int(path.stem) > step]:
                late.unlink()
            self.write(QUESTIONS, text)
        except OSError as fault:
            raise TrainError("train.save", path=self.root, reason=reason(fault)) from None

    def take(self, model: nn.Module, step: int) -> None:
        """Ask the model after a step, and write what it says."""
        training = model.training
        model.eval()
        try:
            written = self.objective.complete(model)([q.prompt for q in self.questions])
        finally:
            model.train(training)
        right = [text.startswith(q.right) for q, text in zip(self.questions, written, strict=True)]
        self.write(f"{step:09d}.json", json.dumps({"schema": SCHEMA, "step": step, "right": right, "written": written}, ensure_ascii=False))

    def write(self, name: str, text: str) -> None:
        """Write a file whole."""
        try:
            with replacing(self.root / name, TrainError) as part:
                part.write_text(text if text.endswith("\n") else f"{text}\n", encoding="utf-8")
        except OSError as fault:
            raise TrainError("train.save", path=self.root / name, reason=reason(fault)) from None


def answered(root: Path) -> list[Path]:
    """Return the files of answers by their steps."""
    return sorted((path for path in root.glob("*.json") if path.stem.isdigit()), key=lambda path: int(path.stem))


def read_facts(run: Path) -> FactHistory | None:
    """Return what became of a run's questions; None if it asked none. A TrainError that names a damaged file."""
    root = run / EVAL
    if not (root / QUESTIONS).is_file():
        return None
    path = root / QUESTIONS
    try:
        known = read_object(path, TABLE_BYTES, TrainError)["questions"]
        questions = [Question(q["prompt"], tuple(q["right"]), q["relation"], q["language"]) for q in known]
        columns = dict[int, Sequence[Any]]()
        for path in answered(root):
            one = read_object(path, TABLE_BYTES, TrainError)["right"]
            if len(one) != len(questions):
                raise ValueError
            columns[int(path.stem)] = one
    except (TrainError, KeyError, TypeError, ValueError):
        raise TrainError("run.damaged", path=path) from None
    right = [[bool(one[i]) for one in columns.values()] for i in range(len(questions))]
    return FactHistory(questions, list(columns), right)
