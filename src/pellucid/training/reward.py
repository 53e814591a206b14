"""Reward: a group of answers is drawn for each prompt and checked, and those better than their group's mean are made likelier.

    A = r − mean r of the group                    scaled: divided by their deviation (n − 1), plus 1e-4        (arXiv 2402.03300)
    loss = −Σ_t A·exp(log p − log p₀) / tokens     over the tokens of all answers of a step; p₀: p, as a constant

The model writes its answers with the weights that the step then changes, so p₀ is p itself, the ratio is exactly 1, and only its gradient
is other than A. The engine's own log-probabilities are rounded otherwise: the log has the gap.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from hashlib import blake2b

import torch
from torch import Tensor, nn

from pellucid.engine.generation import generate
from pellucid.engine.requests import Request
from pellucid.errors import TrainError
from pellucid.nn.transformer import Decoder
from pellucid.ops.sampling.settings import Sampling
from pellucid.training.criterion import Criterion, Figures, Judged, summed, target_logprobs
from pellucid.training.objectives import IGNORED, Batch, Document, Objective
from pellucid.training.own_check import OwnCheck
from pellucid.training.recipe_tables import RewardSettings
from pellucid.training.text_objective import TaughtText, packed_batch
from pellucid.watching.tap import seen_by

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
DEVIATION = 1e-4  # added to the deviation of a group


def exact(text: str, right: Collection[str]) -> bool:
    """True if the text is a right answer; space around it does not count."""
    return text.strip() in {answer.strip() for answer in right}


def begins(text: str, right: Collection[str]) -> bool:
    """True if the text begins with a right answer."""
    return any(text.strip().startswith(answer.strip()) for answer in right)


def last_number(text: str) -> float | None:
    """Return the last number of a text, None if it has none."""
    numbers = NUMBER.findall(text)
    return float(numbers[-1].replace(",", "")) if numbers else None


def same_number(text: str, right: Collection[str]) -> bool:
    """True if the last number of the text is that of a right answer."""
    return (value := last_number(text)) is not None and value in {last_number(answer) for answer in right}


def matches(text: str, right: Collection[str], pattern: re.Pattern[str]) -> bool:
    """True if the text has the pattern; where the pattern has a group, the first one is a right answer too."""
    match = pattern.search(text)
    return match is not None and (not pattern.groups or exact(match[1] or "", right))


CHECKS: dict[str, Callable[[str, Collection[str]], bool]] = {"exact": exact, "begins": begins, "number": same_number}
Rewards = Callable[[int], Sequence[float]]
"""The rewards of a step that was taken before, by its number."""


def advantages(rewards: Tensor, scaled: bool = False) -> Tensor:
    """Return the advantage of each answer, as `rewards`: [groups answers]."""
    centred = rewards - rewards.mean(-1, keepdim=True)
    return centred / (rewards.std(-1, keepdim=True) + DEVIATION) if scaled else centred


def policy_loss(logprobs: Tensor, advantage: Tensor, batch: Batch) -> Tensor:
    """Return −Σ_t A·exp(log p − log p₀) of each answer, [texts]. logprobs: of the rows [T].  advantage: A of each answer, [texts]."""
    ratio = (logprobs - logprobs.detach()).exp()
    return -advantage * summed(ratio * (batch.targets.flatten() != IGNORED), batch)


class DrawnAnswer:
    """One drawn text of a prompt. ids: with its stop.  logprob: the engine's Σ log p.  cut: it ended by length."""

    def __init__(self) -> None:
        self.ids, self.logprob, self.cut = list[int](), 0.0, False


class Reward(Criterion):
    """The mean policy loss of a step's answers. stops: ids that end one.  right: the right answers of each prompt.

    own: the check, where the recipe names a file.  logged: the rewards of a run whose steps are taken again, in place of that check.

    Its figures are the mean reward, the mean length in tokens, the share of answers cut by length, and the mean gap between the engine's
    Σ log p of an answer and the trainer's.
    """

    reached, figures = "card.texts.rewarded", ("reward", "length", "cut", "gap")

    def __init__(
        self,
        settings: RewardSettings,
        objective: TaughtText,
        documents: Sequence[Document],
        seed: int,
        stops: frozenset[int],
        own: OwnCheck | None = None,
        logged: Rewards | None = None,
    ) -> None:
        self.settings, self.tokenizer, self.seed, self.stops, self.own = settings, objective.tokenizer, seed, stops, own
        self.logged = None if own is None else logged
        self.check = partial(matches, pattern=re.compile(settings.pattern)) if settings.pattern else CHECKS.get(settings.check)
        self.identity = {f"reward.{name}": value for name, value in vars(settings).items()}
        self.identity |= {} if own is None else {"reward.file": own.sha}
        self.right = defaultdict[tuple[int, ...], set[str]](set)
        for document in documents:
            prompt, answer = prompt_and_answer(document)
            self.right[tuple(prompt)].add(self.written(answer))

    def written(self, ids: Sequence[int]) -> str:
        """Return the text of an answer's ids."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def batches(self, model: nn.Module, objective: Objective, parts: Sequence[Sequence[Document]], step: int) -> list[Batch]:
        """Draw a group of answers for each document's prompt, and return the batch of each part.

        A batch has of each answer its advantage, divided by the mean length of the step's answers, its reward, its length, whether it was
        cut, and the engine's Σ log p: numbers of texts, [texts 5].
        """
        s = self.settings
        prompts = [prompt_and_answer(document)[0] for part in parts for document in part]
        drawn = self.draw(model, prompts, s.group, s.temperature, [seed_of(self.seed, step, i) for i in range(len(prompts))])
        rewards = torch.tensor(self.rewards(prompts, drawn, step), dtype=torch.float64)
        lengths, cut, logprobs = torch.tensor([[[len(x.ids), x.cut, x.logprob] for x in g] for g in drawn], dtype=torch.float64).unbind(-1)
        numbers = torch.stack([advantages(rewards, s.scaled) / lengths.mean(), rewards, lengths, cut, logprobs], -1)
        out, begin = list[Batch](), 0
        for part in parts:
            these = slice(begin, begin := begin + len(part))
            texts = [learnt(prompt, answer.ids) for prompt, group in zip(prompts[these], drawn[these], strict=True) for answer in group]
            out.append(packed_batch(texts)._replace(of_texts=numbers[these].flatten(0, 1)))
        return out

    def texts(self, numbers: list[int]) -> list[int]:
        return [number for number in numbers for _ in range(self.settings.group)]

    def units(self, batch: Batch) -> int:
        """Return the number of answers."""
        return len(batch.inputs[-1].spans)

    def judge(self, model: nn.Module, batch: Batch, share: float = 1.0) -> Judged:
        assert batch.of_texts is not None
        logits = model(*batch.inputs)
        a, reward, length, cut, engine = batch.of_texts.unbind(-1)
        with torch.no_grad():
            gap = (summed(target_logprobs(logits, batch), batch).to(engine) - engine).abs()
        t = self.settings.temperature
        logprobs = target_logprobs(logits if t == 1 else logits / t, batch)
        loss = policy_loss(logprobs, a.to(logprobs), batch).mean()
        figures = {"reward": reward, "length": length, "cut": cut, "gap": gap}
        return Judged(loss, {name: float(value.mean()) for name, value in figures.items()})

    def measure(self, model: nn.Module, objective: Objective, parts: Sequence[Sequence[Document]]) -> tuple[float, Figures]:
        """Return 1 − the mean reward of the likeliest answers, and the reward."""
        prompts = [prompt_and_answer(document)[0] for part in parts for document in part]
        drawn = self.draw(model, prompts, 1, 0.0, [0] * len(prompts))
        rewards = self.rewards(prompts, drawn)
        mean = sum(one for (one,) in rewards) / len(rewards)
        return 1 - mean, {"reward": mean}

    def draw(self, model: nn.Module, prompts: list[list[int]], n: int, temperature: float, seeds: list[int]) -> list[list[DrawnAnswer]]:
        """Return n answers to each prompt, by the engine."""
        requests = [
            Request(tuple(prompt), self.settings.new, Sampling(temperature, seed=seed), self.stops, n, logprobs=0)
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        drawn = [[DrawnAnswer() for _ in range(n)] for _ in prompts]
        assert isinstance(model, Decoder)
        with seen_by(), torch.no_grad():  # a watch records the step, and not what it learns from
            for output in generate(model, requests):
                answer = drawn[output.request][output.index]
                if output.token is not None and output.token.logprob is not None:
                    answer.ids.append(output.token.id)
                    answer.logprob += output.token.logprob
                answer.cut = output.ended == "length"
        return drawn

    def rewards(self, prompts: list[list[int]], drawn: list[list[DrawnAnswer]], step: int | None = None) -> list[list[float]]:
        """Return the reward of each answer of each group: 1 where the check finds it right, else 0; or what the recipe's own check gives.

        step: the number of steps before this one, whose rewards may be in the log; None outside of steps.
        """
        if self.logged is not None and step is not None:
            known, n = self.logged(step + 1), self.settings.group
            if len(known) != n * len(drawn):
                raise TrainError("replay.rewards", step=step + 1)
            return [list(known[i : i + n]) for i in range(0, len(known), n)]
        out = list[list[float]]()
        for i, (prompt, group) in enumerate(zip(prompts, drawn, strict=True), 1):
            right, texts = self.right[tuple(prompt)], [self.written(answer.ids) for answer in group]
            if self.own is not None:
                prompt_text = self.written(prompt)
                out.append([self.own.score(prompt_text, text, right, (i, n)) for n, text in enumerate(texts, 1)])
            else:
                assert self.check is not None
                out.append([float(self.check(text, right)) for text in texts])
        return out

    def noted(self, batches: Sequence[Batch]) -> dict[str, object]:
        """Return the rewards of a step by the recipe's own check: a step that is taken again reads them, and runs no code of a folder."""
        if self.own is None:
            return {}
        return {"rewards": [reward for batch in batches if batch.of_texts is not None for reward in batch.of_texts[:, 1].tolist()]}


def prompt_and_answer(document: Document) -> tuple[list[int], list[int]]:
    """Return the ids of a document up to its last answer, and this answer's."""
    assert document.learnt is not None
    end = len(document.learnt) - document.learnt[::-1].index(True)
    begin = end
    while begin > 1 and document.learnt[begin - 1]:
        begin -= 1
    return document.target[:begin], document.target[begin:end]


def learnt(prompt: list[int], answer: list[int]) -> Document:
    """Return the document of a prompt and an answer that carries loss."""
    return Document([], [*prompt, *answer], [False] * len(prompt) + [True] * len(answer))


def seed_of(seed: int, step: int, place: int) -> int:
    """Return the seed of the answers to the prompt at a place of a step."""
    return int.from_bytes(blake2b(f"{seed}:{step}:{place}".encode(), digest_size=8).digest(), "little")
