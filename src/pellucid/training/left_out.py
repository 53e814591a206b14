"""What a document did: the run trained again without it, and both models beside each other.

    step                 11      12      13   …  600
    the run             a b c   d 17 e  f g h        documents of each step
    without 17          a b c   d  e    f g h        the same others, in the same order, at the same rates

Up to its first step both are the same to the bit, so that training goes on from there. What follows is no estimate: it is the run that
would have been (influence functions, arXiv 1703.04730, and TracIn, arXiv 2002.08484, estimate it). The mean of a step's loss is over the
documents that are left; a step of which none is left changes nothing. Everything is in memory: the run's folder is only read.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pellucid.errors import TrainError
from pellucid.training.held_out import HeldOut
from pellucid.training.loop import TrainingRun, feed
from pellucid.training.objectives import Causal
from pellucid.training.pair_rows import PairRows
from pellucid.training.quiz import continued
from pellucid.training.recipe_tables import RewardSettings
from pellucid.training.replay import Replay
from pellucid.training.start import fresh
from pellucid.training.texts import Texts


class LossChange(NamedTuple):
    """A number of the run, and that of the run without the documents."""

    own: float
    without: float


class PromptChange(NamedTuple):
    """What both models go on with after a prompt. loss: the mean of -log p over the tokens of the run's own answer, in each."""

    prompt: str
    answers: tuple[str, str]
    loss: LossChange


@dataclass(frozen=True)
class QuestionChange:
    """The held-out questions of a corpus of facts. right: how many each model answers.  lost, won: prompts that the run alone answers, and
    that the run without the documents alone does.
    """

    count: int
    right: tuple[int, int]
    lost: tuple[str, ...]
    won: tuple[str, ...]


class RunWithout(TrainingRun):
    """A run that leaves documents out of its steps after `since`, at the place that `run` is at. It writes nothing."""

    def __init__(self, run: TrainingRun, model: nn.Module, left_out: frozenset[int], since: int) -> None:
        super().__init__(model.train(), run.objective, run.documents, run.s, run.folder, criterion=run.criterion)  # type: ignore[arg-type]
        self.left_out, self.since = left_out, since
        self.identity = {**run.identity, "without": sorted(left_out), "without.since": since}
        weights, moments = run.weights.changing(), dict(run.weights.named_parameters())
        with torch.no_grad():
            for path, t in self.weights.changing().items():
                t.copy_(weights[path])
        self.weights.publish()
        for path, p in self.weights.named_parameters():
            self.optimizer.state[p] = {name: t.clone() for name, t in run.optimizer.state[moments[path]].items()}
        self.step, self.tokens, self.skipped = run.step, run.tokens, run.skipped

    def parts(self, numbers: list[int]) -> list[list[int]]:
        """Return the documents of each micro-batch without those that are left out."""
        parts = super().parts(numbers)
        if self.step < self.since:
            return parts
        return [kept for part in parts if (kept := [i for i in part if i not in self.left_out])]

    def one(self, numbers: list[int]) -> dict[str, Any]:
        """Take one step on what is left of these documents. Nothing changes if nothing is left."""
        if not self.parts(numbers):
            self.step += 1
            return {"step": self.step}
        return super().one(numbers)

    def save(self) -> None:
        """Write nothing: the folder is the other run's."""


@dataclass(frozen=True)
class LeftOut:
    """A run with some of its documents and without them, after the same step.

    documents: the numbers of those that are left out.  steps: those that had one of them.  first: the step after which it was trained
    again.  last: the step that both are compared after.  loss: of these documents.  held_out: the loss of what is held out, None if nothing
    is.  questions: None for texts.  equal: no weight differs.  run: the run without them, with its identity and its model.
    """

    documents: tuple[int, ...]
    steps: tuple[int, ...]
    first: int
    last: int
    loss: LossChange
    held_out: LossChange | None
    prompts: tuple[PromptChange, ...]
    questions: QuestionChange | None
    equal: bool
    run: RunWithout


def leave_out(
    replay: Replay, documents: int | str | Iterable[int], since: int = 0, step: int | None = None, prompts: Sequence[str] | None = None
) -> LeftOut:
    """Train a run again without documents, and return what that changes; nothing is written.

    documents: numbers, as `why` gives them, or a text: all documents that have it.  since: they are left out of the steps after this one.
    step: the last step, by default of the log.  prompts: by default those of the recipe's [watch].
    """
    if isinstance(replay.recipe.aim, RewardSettings):
        raise TrainError("without.reward")
    last = max((entry["step"] for entry in replay.log), default=0) if step is None else step
    if not 0 <= since < last or last not in {entry["step"] for entry in replay.log}:
        raise TrainError("without.steps", since=since, step=last, last=max((e["step"] for e in replay.log), default=0))
    if prompts is None:
        prompts = () if replay.recipe.watch is None else replay.recipe.watch.prompts
    if prompts and not isinstance(replay.objective, Causal):
        raise TrainError("without.prompts", found=replay.recipe.objective)
    run = replay.built[0]
    numbers = chosen(replay, documents)
    taken = islice(feed(run.documents, run.s, since), last - since)
    steps = tuple(since + i for i, own in enumerate(taken, 1) if not numbers.isdisjoint(own))
    if not steps:
        raise TrainError("without.never", documents=named(numbers), first=since + 1, last=last)
    replay.to(first := steps[0] - 1)
    other = RunWithout(run, fresh(replay.recipe, replay.objective).model, numbers, since)
    following = feed(run.documents, run.s, first)
    with replay.threads():
        while other.step < last:
            other.one(next(following))
    replay.to(last)
    with replay.threads():
        return compared(replay, other, numbers, steps, prompts)


def chosen(replay: Replay, documents: int | str | Iterable[int]) -> frozenset[int]:
    """Return the numbers of the documents that are left out; of a pair of answers both. A TrainError for one that there is not."""
    own = replay.built[0].documents
    if isinstance(documents, str):
        numbers = frozenset(i for i in range(len(own)) if documents and documents in replay.text(i))
        if not numbers:
            raise TrainError("without.text", text=repr(documents), count=len(own))
    else:
        numbers = frozenset([documents] if isinstance(documents, int) else documents)
    if wrong := [i for i in numbers if not 0 <= i < len(own)] or ([] if numbers else [-1]):
        raise TrainError("without.document", found=wrong[0], last=len(own) - 1)
    return numbers | {i ^ 1 for i in numbers} if isinstance(own, PairRows) else numbers


def named(numbers: Iterable[int], most: int = 8) -> str:
    """Return the first few of some numbers as text."""
    ordered = sorted(numbers)
    return ", ".join(map(str, ordered[:most])) + (", …" if len(ordered) > most else "")


@torch.no_grad()
def compared(replay: Replay, other: RunWithout, numbers: frozenset[int], steps: tuple[int, ...], prompts: Sequence[str]) -> LeftOut:
    """Return what differs between the run and the one without documents, which are at the same step."""
    run, objective, recipe = replay.built[0], replay.objective, replay.recipe
    own = run.weights.changing()
    equal = all(torch.equal(t, own[path]) for path, t in other.weights.changing().items())
    models = (run.model, other.model)
    for model in models:
        model.eval()
    try:
        lost = [run.documents[i] for i in sorted(numbers)]
        out = list(replay.examples[1])
        groups = objective.groups(lost, recipe.train.batch)
        loss = LossChange(*(run.criterion.measure(model, objective, groups)[0] for model in models))
        rows = recipe.train.micro or recipe.train.batch
        losses = [HeldOut(objective, out, 1, rows, run.criterion).loss(model) for model in models if out]
        changes = tuple(prompt_change(objective, models, text) for text in prompts if isinstance(objective, Causal))
        questions = None if isinstance(recipe.data, Texts) else question_change(replay, models)
    finally:
        for model in models:
            model.train()
    return LeftOut(
        tuple(sorted(numbers)),
        steps,
        steps[0] - 1,
        run.step,
        loss,
        LossChange(*losses) if losses else None,
        changes,
        questions,
        equal,
        other,
    )


def prompt_change(objective: Causal, models: tuple[nn.Module, nn.Module], text: str) -> PromptChange:
    """Return what two models go on with after a text, and the loss of the first one's answer in both."""
    prompt = objective.tokenizer.encode(text, add_special_tokens=False).ids
    if not prompt:
        raise TrainError("without.prompt")
    written = [continued(objective.next_logits(m), [prompt], objective.end, objective.longest)[0] for m in models]
    answer = written[0] + ([objective.end] if len(written[0]) < objective.longest else [])
    answers = tuple(objective.tokenizer.decode(ids) for ids in written)
    return PromptChange(text, (answers[0], answers[1]), LossChange(*(answer_loss(objective, m, prompt, answer) for m in models)))


def answer_loss(objective: Causal, model: nn.Module, prompt: list[int], answer: list[int]) -> float:
    """Return the mean of -log p over the ids of an answer, each after the prompt and those before it."""
    logits, given, written = objective.next_logits(model), torch.tensor([prompt]), torch.tensor([answer])
    rows: list[Tensor] = [logits(given, written[:, :i])[0].double().log_softmax(-1)[id] for i, id in enumerate(answer)]
    return -float(torch.stack(rows).mean())


def question_change(replay: Replay, models: tuple[nn.Module, nn.Module]) -> QuestionChange:
    """Return which of a corpus' held-out questions each of two models answers."""
    objective = replay.objective
    questions = objective.questions(replay.recipe.data)
    prompts = [q.prompt for q in questions]
    right = [[text.startswith(q.right) for q, text in zip(questions, objective.complete(m)(prompts), strict=True)] for m in models]
    both = list(zip(prompts, *right, strict=True))
    lost, won = ([prompt for prompt, a, b in both if (a, b) == pair] for pair in ((True, False), (False, True)))
    return QuestionChange(len(questions), (sum(right[0]), sum(right[1])), tuple(lost), tuple(won))
