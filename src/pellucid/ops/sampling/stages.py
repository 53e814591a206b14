"""From logits to the next token. Each setting is a stage over the whole vocabulary, in one order; a stage that is off does not run.

    bias -> repetition -> presence -> frequency | -> temperature -> top_k -> top_p -> min_p -> probabilities -> draw

Temperature 0 takes the largest after the stages before the bar. The order is transformers' (its processors, then its warpers), with vLLM's
two penalties of the output, which are OpenAI's. vLLM cuts by min-p before top-k and top-p, llama.cpp puts the temperature last, so that a
hot draw keeps to what a cool one would have kept; ours cuts what is drawn from: top_p 0.9 is nine tenths of the very chances of the draw.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import isfinite

import numpy as np
import torch
from torch import Tensor

from pellucid.errors import UseError
from pellucid.ops import native
from pellucid.ops.gate import E_LABELS, E_NUMBERS, part_of_row
from pellucid.ops.kinds import OpKind, plain
from pellucid.ops.precision import wide
from pellucid.ops.sampling.settings import OFF, Sampling
from pellucid.ops.sampling.truncation import drawn, largest, near, nucleus
from pellucid.ops.sampling.uniform import sibling, uniform
from pellucid.watching.tap import here, note, tap
from pellucid.watching.terms import Index, Terms

LAST_ROW = OpKind("last row", lambda m: f"{m.x}[−1]", result="last row")
BIAS = OpKind("bias", lambda m: f"{m.x} + bias")
REPETITION = OpKind(
    "repetition",
    lambda m: f"repetition({m.x}, {plain(m.setting('repetition', 'r'))})",
    labels={"penalty": lambda m: f"repetition {plain(m.setting('repetition'))}"},
)
PRESENCE = OpKind(
    "presence",
    lambda m: f"{m.x} − {plain(m.setting('presence', 'presence'))} · written",
    labels={"presence": lambda m: f"−{plain(m.setting('presence'))} · written"},
)
FREQUENCY = OpKind(
    "frequency",
    lambda m: f"{m.x} − {plain(m.setting('frequency', 'frequency'))} · count",
    labels={"frequency": lambda m: f"−{plain(m.setting('frequency'))} · count"},
)
TEMPERATURE = OpKind(
    "temperature",
    lambda m: f"({m.x} − max({m.x})) / {plain(m.setting('temperature', 'temperature'))}",
    labels={"gap": lambda m: f"{m.x} − max", "over": lambda m: f"1/{plain(m.setting('temperature'))}"},
    template=lambda m: f"({{x}} − {{top}}) / {plain(m.setting('temperature', 1))}",
)
PROBABILITIES = OpKind("probabilities", lambda m: f"softmax({m.x})", labels=E_LABELS, template=lambda m: E_NUMBERS)
TOP_K, TOP_P, MIN_P = (
    OpKind(name, lambda m, name=name: f"{name}({m.x}, {plain(m.setting(name, name))})")  # type: ignore[misc]
    for name in ("top_k", "top_p", "min_p")
)
COLDEST = 1e-30  # a colder temperature would overflow float32, and would choose the largest all the same


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

    @cached_property
    def counts(self) -> tuple[Tensor, Tensor]:
        """The output's tokens, each once, and how often each came."""
        counter = Counter(self.output)
        return tuple(torch.from_numpy(np.fromiter(n, int, len(counter))) for n in (counter.keys(), counter.values()))  # type: ignore[return-value]

    def ids(self) -> Tensor:
        """Every token of prompt and output; those of both twice."""
        return torch.from_numpy(np.concatenate([distinct(Same(tuple(self.prompt))), self.counts[0].numpy()]))


@dataclass(frozen=True, eq=False)
class Same:
    """A prompt that is equal to itself alone: to compare thousands of tokens at each step takes longer than to draw."""

    prompt: tuple[int, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.prompt is other.prompt

    def __hash__(self) -> int:
        return id(self.prompt)


@lru_cache(64)
def distinct(same: Same) -> np.ndarray:
    """A prompt's tokens, each once: the same at every step of its request."""
    return np.array(sorted(set(same.prompt)), dtype=int)


def own(x: Tensor) -> Tensor:
    """x to be written to: itself, which `run` has made; under a watch, which may keep it, a copy."""
    return x.clone() if here.calls else x


def bias(x: Tensor, s: Sampling, history: History) -> Tensor:
    """x + the bias of each token that has one."""
    ids, values = s.biases
    terms = lambda i: Terms().plus(x=x[i], bias=s.bias.get(i[0], 0.0))  # noqa: E731
    y = own(x).index_add_(0, ids, values.to(x.dtype))
    return note(y, BIAS.name, (x,), (), terms, settings=lambda: {"bias": {str(id): value for id, value in s.bias.items()}})


def repetition(x: Tensor, s: Sampling, history: History) -> Tensor:
    """Of tokens in the prompt or the output: x / r where x is positive, x · r where not (CTRL, arXiv 1909.05858, as all peers mend it)."""
    ids, r, out = history.ids().numpy(), s.repetition, own(x)
    some = out.numpy()[ids]
    out.numpy()[ids] = np.where(some > 0, some / r, some * r)

    def terms(i: Index) -> Terms:
        return Terms(x=x[i], penalty=(1 / r if x[i] > 0 else r) if i[0] in history.prompt or i[0] in history.output else 1.0)

    return note(out, REPETITION.name, (x,), (), terms, settings=lambda: {"repetition": r})


def presence(x: Tensor, s: Sampling, history: History) -> Tensor:
    """Of tokens in the output: x - presence."""
    ids, out = history.counts[0].numpy(), own(x)
    out.numpy()[ids] -= s.presence
    terms = lambda i: Terms().plus(x=x[i], presence=-s.presence * (i[0] in history.output))  # noqa: E731
    return note(out, PRESENCE.name, (x,), (), terms, settings=lambda: {"presence": s.presence})


def frequency(x: Tensor, s: Sampling, history: History) -> Tensor:
    """x - frequency · how often the output has the token."""
    (ids, counts), out = history.counts, own(x)
    out.numpy()[ids.numpy()] -= s.frequency * counts.to(x.dtype).numpy()

    def terms(i: Index) -> Terms:
        count = history.output.count(i[0])
        return Terms().plus(x=x[i], frequency=-s.frequency * count).of(count=count)

    return note(out, FREQUENCY.name, (x,), (), terms, settings=lambda: {"frequency": s.frequency})


def temperature(x: Tensor, s: Sampling, history: History) -> Tensor:
    """(x - its largest) / temperature."""
    top, t = float(x.numpy().max()) if here.calls else finite(x), max(s.temperature, COLDEST)
    y = native.cooled(x, top, t) if native.fits_row(x) else scaled(x, t)
    terms = lambda i: Terms(gap=x[i].double() - top, over=1 / t).of(x=x[i], top=top)  # noqa: E731
    return note(y, TEMPERATURE.name, (x,), (), terms, settings=lambda: {"temperature": t})


def finite(x: Tensor) -> float:
    """The largest of x [N], from which there is something to draw."""
    if not isfinite(top := float(x.numpy().max())):
        raise UseError("sampling.none", found=top)
    return top


CHANGES: dict[str, Callable[[Tensor, Sampling, History], Tensor]] = {
    "bias": bias, "repetition": repetition, "presence": presence, "frequency": frequency, "temperature": temperature,
}  # fmt: skip
CUTS: dict[str, Callable[[Tensor, float], Tensor]] = {"top_k": lambda x, k: largest(x, int(k)), "top_p": nucleus, "min_p": near}


@dataclass(frozen=True, slots=True)
class Stage:
    """What a stage left: a number for each token that may still be chosen, in order of id. ids: which tokens, None for all of them.

    The numbers are those of the next stage as soon as it is asked for. seen: the whole as a watcher knows it.
    """

    name: str
    values: Tensor
    ids: Tensor | None
    vocab: int
    seen: Tensor | None = None

    @property
    def full_row(self) -> Tensor:
        """A number for each token of the vocabulary [V]: of those that were cut, -∞, or the probability 0."""
        if self.seen is not None:
            return self.seen
        if self.ids is None:
            return self.values
        none = 0.0 if self.name == "probabilities" else float("-inf")
        return self.values.new_full((self.vocab,), none).index_copy(0, self.ids, self.values)

    def watched(self, before: "Stage", setting: float | None = None) -> "Stage":
        """Tap this stage over the whole vocabulary while watched; the next stage goes on from what an edit returns.

        setting: how much is kept, of a stage that cuts.
        """
        if not here.calls:
            return self
        full_row, old = self.full_row, before.full_row

        def terms(i: Index) -> Terms:
            if setting is None:
                return part_of_row(old.double(), i[0])
            return Terms().plus(x=old[i], cut=None if full_row[i] == old[i] else full_row[i])

        made = note(full_row, self.name, (old,), (), terms, settings=lambda: {} if setting is None else {self.name: setting})
        tapped = tap(made, f"{self.name}: V")
        return replace(self, seen=tapped) if tapped is made else Stage(self.name, tapped, None, self.vocab)


def run(logits: Tensor, s: Sampling, history: History) -> Iterator[Stage]:
    """Logits [V], and every stage that these settings switch on, in order; the last leaves probabilities, but at temperature 0."""
    for at in left(logits, s, history):
        yield at
    if not s.greedy:
        yield Stage("probabilities", at.values.double().softmax(0), at.ids, at.vocab).watched(at)


def left(logits: Tensor, s: Sampling, history: History) -> Iterator[Stage]:
    """The stages before the probabilities."""
    changed = any(getattr(s, name) != OFF[name] for name in ("bias", "repetition", "presence", "frequency"))
    x = logits.to("cpu", wide(logits.dtype), copy=bool(here.calls) or changed)  # a tensor that the model has not made
    x = tap(note(x, LAST_ROW.name, (logits,), (), lambda i: Terms(x=logits[i])), "logits: V")
    yield (at := Stage("logits", x, None, len(x)))
    for name, change in CHANGES.items():
        if getattr(s, name) != OFF[name] and not (name == "temperature" and s.greedy):
            yield (at := Stage(name, tap(change(at.values, s, history), f"{name}: V"), None, at.vocab))
    if s.greedy:
        return
    if here.calls or at.name != "temperature":  # which has looked for itself
        finite(at.values)
    for name, cut in CUTS.items():
        if (setting := getattr(s, name)) != OFF[name]:
            kept = cut(at.values, setting)
            ids = kept if at.ids is None else at.ids[kept]
            at = Stage(name, at.values.index_select(0, kept), ids, at.vocab).watched(at, setting)
            yield at


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
    but temperature 0 does not look. best: the index of the largest logit, if it is known.
    """
    if best is not None and s.plain and not here.calls:
        return best
    history = History(prompt, output)
    at = deque((run if here.calls else left)(logits, s, history), 1).pop()
    if s.greedy:
        return top(at.values)
    assert s.seed is not None
    u = uniform(sibling(s.seed, index), len(output))
    place = int(draw(at.values, u)) if here.calls else among(at.values, u, None if s.temperature == OFF["temperature"] else 0.0)
    return place if at.ids is None else int(at.ids[place])


def among(x: Tensor, u: float, top: float | None = None) -> int:
    """What a draw from the softmax of x [N] gives, without all of its probabilities where they are many. top: as of `drawn`."""
    place = drawn(x, u, top)
    return int(draw(x.double().softmax(0), u)) if place is None else place


def top(x: Tensor) -> int:
    """Where the largest of x [V] lies, the first of equals."""
    return int(native.argmax(x) if native.fits_argmax(x) else x.argmax())


def stages(logits: Tensor, s: Sampling, prompt: Sequence[int] = (), output: Sequence[int] = ()) -> list[tuple[str, Tensor]]:
    """What `choose` does, stage by stage: "logits" and every stage that runs, each [V] with -∞ (of probabilities 0) for tokens cut."""
    return [(stage.name, stage.full_row.clone()) for stage in run(logits, s, History(prompt, output))]
