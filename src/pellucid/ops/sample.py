"""From logits to the next token. Each setting is a stage over the whole vocabulary, in one order; a stage that is off does not run.

    bias -> repetition -> presence -> frequency | -> temperature -> top_k -> top_p -> min_p -> probabilities -> draw

Temperature 0 takes the largest after the stages before the bar. The order is transformers' (its processors, then its warpers), with vLLM's
two penalties of the output, which are OpenAI's. vLLM cuts by min-p before top-k and top-p, llama.cpp puts the temperature last, so that a
hot draw keeps to what a cool one would have kept; ours cuts what is drawn from: top_p 0.9 is nine tenths of the very chances of the draw.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import log

import numpy as np
import torch
from torch import Tensor

from pellucid.errors import UseError
from pellucid.ops import native
from pellucid.ops.gate import each
from pellucid.ops.precision import wide
from pellucid.ops.sampling import OFF, Sampling
from pellucid.ops.uniform import sibling, uniform
from pellucid.tap import Index, Terms, here, note, tap

COLDEST = 1e-30  # a colder temperature would overflow float32, and would choose the largest all the same
FEW = 2048  # likeliest tokens that a nucleus is first looked for in: mostly it is there


def probabilities(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Softmax of logits [... V] over the whole vocabulary, in float32 at least.

    Temperature 0 puts all on the largest, the first of equals.
    """
    w = logits.to(wide(logits.dtype))
    if temperature == 0:
        return torch.nn.functional.one_hot(w.argmax(-1), w.shape[-1]).to(w.dtype)
    return scaled(w, temperature).softmax(-1)


def scaled(x: Tensor, temperature: float) -> Tensor:
    """(x - its largest) / temperature over the last axis: the same chances as x / temperature, and no overflow."""
    return (x - x.amax(-1, keepdim=True)) / max(temperature, COLDEST)


def logprobs(logits: Tensor) -> Tensor:
    """Log of the softmax of logits [... V], in float32 at least: of the model's own distribution, before any stage."""
    return logits.to(wide(logits.dtype)).log_softmax(-1)


def likeliest(logprobs: Tensor, count: int) -> tuple[tuple[int, float], ...]:
    """The tokens of the `count` largest of logprobs [V], each with its own, from the largest down; of equals the lower id first."""
    at = largest(logprobs.cpu(), count)
    values, order = logprobs.cpu()[at].sort(descending=True, stable=True)
    return tuple(zip(at[order].tolist(), values.tolist(), strict=True))


@dataclass(frozen=True)
class History:
    """What a request has read and written so far: its penalties count it."""

    prompt: Sequence[int] = ()
    output: Sequence[int] = ()

    def counts(self) -> tuple[Tensor, Tensor]:
        """The output's tokens, each once, and how often each came."""
        found = Counter(self.output)
        return torch.tensor(list(found), dtype=torch.long), torch.tensor(list(found.values()))

    def ids(self) -> Tensor:
        """Every token of prompt and output."""
        return torch.cat([distinct(tuple(self.prompt)), torch.tensor(list(set(self.output)), dtype=torch.long)])


@lru_cache(64)
def distinct(prompt: tuple[int, ...]) -> Tensor:
    """A prompt's tokens, each once: the same at every step of its request."""
    return torch.tensor(sorted(set(prompt)), dtype=torch.long)


def bias(x: Tensor, s: Sampling, history: History) -> Tensor:
    """x + the bias of each token that has one."""
    ids, values = s.biases
    return note(x.index_add(0, ids, values.to(x.dtype)), "bias", (x,), (), lambda i: Terms(value=[x[i], s.bias.get(i[0], 0.0)]))


def repetition(x: Tensor, s: Sampling, history: History) -> Tensor:
    """Of tokens in the prompt or the output: x / r where x is positive, x · r where not (CTRL, arXiv 1909.05858, as all peers mend it)."""
    ids, r, out = history.ids(), s.repetition, x.clone()
    out[ids] = torch.where(x[ids] > 0, x[ids] / r, x[ids] * r)

    def terms(i: Index) -> Terms:
        return Terms(x=x[i], penalty=(1 / r if x[i] > 0 else r) if i[0] in history.prompt or i[0] in history.output else 1.0)

    return note(out, "repetition", (x,), (), terms)


def presence(x: Tensor, s: Sampling, history: History) -> Tensor:
    """Of tokens in the output: x - presence."""
    ids, out = history.counts()[0], x.clone()
    out[ids] -= s.presence
    return note(out, "presence", (x,), (), lambda i: Terms(value=[x[i], -s.presence * (i[0] in history.output)]))


def frequency(x: Tensor, s: Sampling, history: History) -> Tensor:
    """x - frequency · how often the output has the token."""
    (ids, counts), out = history.counts(), x.clone()
    out[ids] -= s.frequency * counts.to(x.dtype)
    return note(out, "frequency", (x,), (), lambda i: Terms(weight=[1.0, -s.frequency], value=[x[i], history.output.count(i[0])]))


def temperature(x: Tensor, s: Sampling, history: History) -> Tensor:
    """(x - its largest) / temperature."""
    top, t = x.max(), max(s.temperature, COLDEST)
    return note(scaled(x, t), "temperature", (x,), (), lambda i: Terms(gap=[x[i].double() - top.double()], inverse=[1 / t]))


def largest(x: Tensor, k: int) -> Tensor:
    """Where the k largest of x [N] lie, in order; of equals the earlier. All where k is no less than N."""
    if k >= len(x):
        return torch.arange(len(x))
    values = x.numpy()
    return first(values, np.partition(values, len(x) - k)[len(x) - k], k) if k else torch.arange(0)


def first(values: np.ndarray, least: float, k: int) -> Tensor:
    """Where the k largest of these lie, whose smallest is known: what lies above it, and of those that equal it the first."""
    at = np.flatnonzero(values >= least)
    if surplus := len(at) - k:
        at = np.delete(at, np.flatnonzero(values[at] == least)[-surplus:])
    return torch.from_numpy(at)


def nucleus(x: Tensor, p: float) -> Tensor:
    """Where the fewest of x [N] lie whose softmax comes to p together, the one that crosses it too, one at least (arXiv 1904.09751)."""
    values, top = x.numpy(), float(x.max())
    total = float((x.double() - top).exp_().sum())
    for size in (FEW, len(x)):
        best = torch.from_numpy(np.sort(values if size >= len(x) else np.partition(values, -size)[-size:])).flip(0)
        mass = (best.double() - top).exp_().cumsum(0)
        if (k := 1 + int(torch.searchsorted(mass, p * total))) <= len(best):
            return first(values, float(best[k - 1]), k)
    return torch.arange(len(x))


def near(x: Tensor, share: float) -> Tensor:
    """Where those of x [N] lie whose softmax is at least this share of the largest (min-p, arXiv 2407.01082)."""
    return torch.from_numpy(np.flatnonzero(x.numpy() >= float(x.max()) + log(share)))


CHANGES: dict[str, Callable[[Tensor, Sampling, History], Tensor]] = {
    "bias": bias, "repetition": repetition, "presence": presence, "frequency": frequency, "temperature": temperature,
}  # fmt: skip
CUTS: dict[str, Callable[[Tensor, float], Tensor]] = {"top_k": lambda x, k: largest(x, int(k)), "top_p": nucleus, "min_p": near}


@dataclass(frozen=True, slots=True)
class Stage:
    """What a stage left: a number for each token that may still be chosen, in order of id. ids: which tokens, None for all of them."""

    name: str
    values: Tensor
    ids: Tensor | None
    vocab: int

    @property
    def whole(self) -> Tensor:
        """A number for each token of the vocabulary [V]: of those that were cut, -∞, or the probability 0."""
        if self.ids is None:
            return self.values
        none = 0.0 if self.name == "probabilities" else float("-inf")
        return self.values.new_full((self.vocab,), none).index_copy(0, self.ids, self.values)

    def watched(self, before: Tensor, terms: Callable[[Index], Terms] | None = None) -> "tuple[Stage, Tensor]":
        """This stage, tapped over the whole vocabulary, and what the tap gave; a watcher's edit is what the next stage goes on from."""
        made = each(self.whole, self.name, before) if terms is None else note(self.whole, self.name, (before,), (), terms)
        found = tap(made, f"{self.name}: V")
        return (self if found is made else Stage(self.name, found, None, self.vocab)), found


def run(logits: Tensor, s: Sampling, history: History) -> Iterator[Stage]:
    """Logits [V], and every stage that these settings switch on, in order; the last leaves probabilities, but at temperature 0."""
    x = logits.to("cpu", wide(logits.dtype), copy=bool(here.calls))  # for a watcher a tensor that the model has not made
    x = tap(each(x, "wide", logits), "logits: V")
    yield (at := Stage("logits", x, None, len(x)))
    for name, change in CHANGES.items():
        if getattr(s, name) != OFF[name] and not (name == "temperature" and s.greedy):
            yield (at := Stage(name, tap(change(at.values, s, history), f"{name}: V"), None, at.vocab))
    if s.greedy:
        return
    if not bool((best := at.values.max()).isfinite()):
        raise UseError("sampling.none", found=float(best))
    whole = at.values
    for name, cut in CUTS.items():
        if (setting := getattr(s, name)) != OFF[name]:
            kept = cut(at.values, setting)
            ids = kept if at.ids is None else at.ids[kept]
            at = Stage(name, at.values.index_select(0, kept), ids, at.vocab)
            if here.calls:
                at, whole = at.watched(whole)
            yield at
    x = at.values
    at = Stage("probabilities", x.double().softmax(0), at.ids, at.vocab)
    if here.calls:
        at, _ = at.watched(whole, lambda i: softmax_terms(whole, i))
    yield at


def softmax_terms(x: Tensor, i: Index) -> Terms:
    """A probability: e^(x - top) over the sum."""
    e = (x.double() - x.max().double()).exp()
    return Terms(exp=e[i], inverse=1.0 / e.sum())


def draw(probabilities: Tensor, u: Tensor | float) -> Tensor:
    """The first of probabilities [N] up to which they sum to more than u · all: never one that is 0. float64; u may be a tensor [draws].

    probabilities [0.5, 0.0, 0.5] and u of 0.49, 0.5, 0.99 give 0, 2, 2.
    """
    sums = probabilities.cpu().double().cumsum(0)
    if not float(sums[-1]) > 0:
        raise UseError("sampling.none", found=float(probabilities.max()))
    return torch.searchsorted(sums, u * sums[-1:], right=True).squeeze()


def choose(
    logits: Tensor, s: Sampling, prompt: Sequence[int] = (), output: Sequence[int] = (), index: int = 0, best: int | None = None
) -> int:
    """The token after logits [V] of a request that has read `prompt` and written `output`, as its `index`-th text.

    A draw follows from these and the seed alone. Logits may be -∞; to draw where all are, or from NaN, is a UseError,
    but temperature 0 does not look. best: where the largest of the logits lies, if somebody knows.
    """
    if best is not None and s.plain and not here.calls:
        return best
    at = deque(run(logits, s, History(prompt, output)), 1).pop()
    if s.greedy:
        return top(at.values)
    assert s.seed is not None
    found = int(draw(at.values, uniform(sibling(s.seed, index), len(output))))
    return found if at.ids is None else int(at.ids[found])


def top(x: Tensor) -> int:
    """Where the largest of x [V] lies, the first of equals."""
    return int(native.argmax(x) if native.fits_argmax(x) else x.argmax())


def stages(logits: Tensor, s: Sampling, prompt: Sequence[int] = (), output: Sequence[int] = ()) -> list[tuple[str, Tensor]]:
    """What `choose` does, stage by stage: "logits" and every stage that runs, each [V] with -∞ (of probabilities 0) for tokens cut."""
    return [(stage.name, stage.whole) for stage in run(logits, s, History(prompt, output))]
