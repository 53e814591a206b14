"""From logits to the next token. Each setting is a stage over the whole vocabulary, in one order; a stage that is off does not run.

    allowed -> bias -> repetition -> presence -> frequency | -> temperature -> top_k -> top_p -> min_p -> probabilities -> draw

Temperature 0 takes the largest after the stages before the bar. The order is transformers' (its processors, then its warpers), with
OpenAI's two penalties of the output, as in vLLM. vLLM applies min-p before top-k and top-p; llama.cpp applies the temperature last, so
that a hot draw keeps the tokens of a cool one. Here the cuts apply to the distribution of the draw: top_p 0.9 keeps 0.9 of it.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import inf, isfinite, log

import numpy as np
import torch
from torch import Tensor

from pellucid.errors import UseError
from pellucid.ops import native
from pellucid.ops.gate import E_LABELS, E_NUMBERS, part_of_row
from pellucid.ops.kinds import OpKind, plain
from pellucid.ops.precision import wide
from pellucid.ops.sampling.settings import OFF, Sampling
from pellucid.ops.sampling.token_mask import TokenMask
from pellucid.ops.sampling.truncation import largest, near, nucleus
from pellucid.ops.sampling.uniform import sibling, state, uniform
from pellucid.watching.tap import here, note, tap
from pellucid.watching.terms import Index, Terms

LAST_ROW = OpKind("last row", lambda m: f"{m.x}[−1]", result="last row")
ALLOWED = OpKind("allowed", lambda m: f"{m.x} if allowed, else −∞")
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
    """Compute the softmax of logits [... V] / temperature, in float32 at least.

    Temperature 0 gives 1 to the largest, the first of ties.
    """
    w = logits.to(wide(logits.dtype))
    if temperature == 0:
        return torch.nn.functional.one_hot(w.argmax(-1), w.shape[-1]).to(w.dtype)
    return scaled(w, temperature).softmax(-1)


def scaled(x: Tensor, temperature: float) -> Tensor:
    """Compute (x - its largest) / temperature over the last axis: the same probabilities as x / temperature, without overflow."""
    return (x - x.amax(-1, keepdim=True)) / max(temperature, COLDEST)


def logprobs(logits: Tensor) -> Tensor:
    """Compute the log of the softmax of logits [... V], in float32 at least: the model's distribution before any stage."""
    return logits.to(wide(logits.dtype)).log_softmax(-1)


def likeliest(logprobs: Tensor, count: int) -> tuple[tuple[int, float], ...]:
    """Return the `count` largest of logprobs [V] as (id, logprob), from the largest down; of ties the lower id first."""
    at = largest(logprobs.cpu(), count)
    values, order = logprobs.cpu()[at].sort(descending=True, stable=True)
    return tuple(zip(at[order].tolist(), values.tolist(), strict=True))


@dataclass(frozen=True)
class History:
    """The tokens of a request's prompt and output so far, for its penalties."""

    prompt: Sequence[int] = ()
    output: Sequence[int] = ()

    @cached_property
    def counts(self) -> tuple[Tensor, Tensor]:
        """Return the output's distinct tokens, and the count of each."""
        counter = Counter(self.output)
        return tuple(torch.from_numpy(np.fromiter(n, int, len(counter))) for n in (counter.keys(), counter.values()))  # type: ignore[return-value]

    def ids(self) -> Tensor:
        """Return the distinct tokens of the prompt, then those of the output."""
        return torch.from_numpy(np.concatenate([distinct(Same(tuple(self.prompt))), self.counts[0].numpy()]))


@dataclass(frozen=True, eq=False)
class Same:
    """A prompt as a key that compares by identity: comparing thousands of tokens at each step takes longer than the draw."""

    prompt: tuple[int, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.prompt is other.prompt

    def __hash__(self) -> int:
        return id(self.prompt)


@lru_cache(64)
def distinct(same: Same) -> np.ndarray:
    """Return a prompt's distinct tokens, sorted, cached for the steps of its request."""
    return np.array(sorted(set(same.prompt)), dtype=int)


def own(x: Tensor) -> Tensor:
    """Return x for writing: itself, since `run` has made it; a copy under a watch, which may keep x."""
    return x.clone() if here.calls else x


def bias(x: Tensor, s: Sampling, history: History) -> Tensor:
    """Add the bias of each token that has one to x [V]."""
    ids, values = s.biases
    terms = lambda i: Terms().plus(x=x[i], bias=s.bias.get(i[0], 0.0))  # noqa: E731
    y = own(x).index_add_(0, ids, values.to(x.dtype))
    return note(y, BIAS.name, (x,), (), terms, settings=lambda: {"bias": {str(id): value for id, value in s.bias.items()}})


def repetition(x: Tensor, s: Sampling, history: History) -> Tensor:
    """Divide the positive logits of tokens in the prompt or the output by r, and multiply the others by r.

    CTRL (arXiv 1909.05858) divides all of them, which raises negative ones; every library corrects it so.
    """
    ids, r, out = history.ids().numpy(), s.repetition, own(x)
    some = out.numpy()[ids]
    out.numpy()[ids] = np.where(some > 0, some / r, some * r)

    def terms(i: Index) -> Terms:
        return Terms(x=x[i], penalty=(1 / r if x[i] > 0 else r) if i[0] in history.prompt or i[0] in history.output else 1.0)

    return note(out, REPETITION.name, (x,), (), terms, settings=lambda: {"repetition": r})


def presence(x: Tensor, s: Sampling, history: History) -> Tensor:
    """Subtract `presence` from the logits of tokens in the output."""
    ids, out = history.counts[0].numpy(), own(x)
    out.numpy()[ids] -= s.presence
    terms = lambda i: Terms().plus(x=x[i], presence=-s.presence * (i[0] in history.output))  # noqa: E731
    return note(out, PRESENCE.name, (x,), (), terms, settings=lambda: {"presence": s.presence})


def frequency(x: Tensor, s: Sampling, history: History) -> Tensor:
    """Subtract `frequency` times the token's count in the output from x [V]."""
    (ids, counts), out = history.counts, own(x)
    out.numpy()[ids.numpy()] -= s.frequency * counts.to(x.dtype).numpy()

    def terms(i: Index) -> Terms:
        count = history.output.count(i[0])
        return Terms().plus(x=x[i], frequency=-s.frequency * count).of(count=count)

    return note(out, FREQUENCY.name, (x,), (), terms, settings=lambda: {"frequency": s.frequency})


def temperature(x: Tensor, s: Sampling, history: History) -> Tensor:
    """Compute (x - its largest) / temperature."""
    top, t = float(x.numpy().max()) if here.calls else finite(x), max(s.temperature, COLDEST)
    y = native.cooled(x, top, t) if native.fits_row(x) else scaled(x, t)
    terms = lambda i: Terms(gap=x[i].double() - top, over=1 / t).of(x=x[i], top=top)  # noqa: E731
    return note(y, TEMPERATURE.name, (x,), (), terms, settings=lambda: {"temperature": t})


def restricted(x: Tensor, allowed: TokenMask) -> Tensor:
    """Return x [V] with -∞ for each token that is not allowed."""
    y = x.masked_fill(~allowed.flags, float("-inf"))
    return note(y, ALLOWED.name, (x,), (), lambda i: Terms().plus(x=x[i], cut=None if i[0] in allowed else y[i]))


def finite(x: Tensor) -> float:
    """Return the largest of x [N]. Raises UseError unless it is finite, since there is nothing to draw then."""
    if not isfinite(top := float(x.numpy().max())):
        raise UseError("sampling.none", found=top)
    return top


CHANGES: dict[str, Callable[[Tensor, Sampling, History], Tensor]] = {
    "bias": bias, "repetition": repetition, "presence": presence, "frequency": frequency, "temperature": temperature,
}  # fmt: skip
CUTS: dict[str, Callable[[Tensor, float], Tensor]] = {"top_k": lambda x, k: largest(x, int(k)), "top_p": nucleus, "min_p": near}


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage's output: a number for each token that is still allowed, in order of id. ids: of these tokens, None for all.

    The next stage may overwrite `values`. seen: the full row as a watch recorded it.
    """

    name: str
    values: Tensor
    ids: Tensor | None
    vocab: int
    seen: Tensor | None = None

    @property
    def full_row(self) -> Tensor:
        """Return a number for each token of the vocabulary [V]; for a cut token -∞, or the probability 0."""
        if self.seen is not None:
            return self.seen
        if self.ids is None:
            return self.values
        none = 0.0 if self.name == "probabilities" else float("-inf")
        return self.values.new_full((self.vocab,), none).index_copy(0, self.ids, self.values)

    def watched(self, before: "Stage", setting: float | None = None) -> "Stage":
        """Tap this stage's full row under a watch. Returns the stage, with the row of an edit if there was one.

        setting: the bound of a stage that cuts.
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


def run(logits: Tensor, s: Sampling, history: History, allowed: TokenMask | None = None) -> Iterator[Stage]:
    """Yield logits [V] and every stage that is on, in order. The last is "probabilities", except at temperature 0."""
    for at in left(logits, s, history, allowed):
        yield at
    if not s.greedy:
        yield Stage("probabilities", at.values.double().softmax(0), at.ids, at.vocab).watched(at)


def left(logits: Tensor, s: Sampling, history: History, allowed: TokenMask | None = None) -> Iterator[Stage]:
    """Yield the stages before the probabilities."""
    x = logits.to("cpu", wide(logits.dtype), copy=bool(here.calls) or s.changes)  # not the model's own tensor
    x = tap(note(x, LAST_ROW.name, (logits,), (), lambda i: Terms(x=logits[i])), "logits: V")
    yield (at := Stage("logits", x, None, len(x)))
    if allowed is not None:
        yield (at := Stage("allowed", tap(restricted(x, allowed), "allowed: V"), None, len(x)))
    for name, change in CHANGES.items():
        if getattr(s, name) != OFF[name] and not (name == "temperature" and s.greedy):
            yield (at := Stage(name, tap(change(at.values, s, history), f"{name}: V"), None, at.vocab))
    if s.greedy:
        return
    if here.calls or at.name != "temperature":  # `temperature` has checked already
        finite(at.values)
    for name, cut in CUTS.items():
        if (setting := getattr(s, name)) != OFF[name]:
            kept = cut(at.values, setting)
            ids = kept if at.ids is None else at.ids[kept]
            at = Stage(name, at.values.index_select(0, kept), ids, at.vocab).watched(at, setting)
            yield at


def draw(probabilities: Tensor, u: Tensor | float) -> Tensor:
    """Return the first index at which the running sum of probabilities [N], in float64, exceeds u times their sum.

    Its probability is never 0. Raises UseError if the sum is 0 or NaN. u: a number in [0, 1), or a tensor [draws].
    probabilities [0.5, 0.0, 0.5] and u of 0.49, 0.5, 0.99 give 0, 2, 2.
    """
    sums = probabilities.cpu().double().cumsum(0)
    if not float(sums[-1]) > 0:
        raise UseError("sampling.none", found=float(probabilities.max()))
    return torch.searchsorted(sums, u * sums[-1:], right=True).squeeze()


def choose(
    logits: Tensor,
    s: Sampling,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    index: int = 0,
    best: int | None = None,
    allowed: TokenMask | None = None,
) -> int:
    """Choose the token after logits [V] for text number `index` of a request with this prompt and output.

    A draw depends on these and the seed alone. Logits may be -∞; a draw from -∞ alone, or from NaN, is a UseError, which temperature 0
    does not check. best: the index of the largest logit, if known.  allowed: the tokens that may come; None allows all.
    """
    if best is not None and s.plain and not here.calls:
        if allowed is None:
            return best
        if (id := largest_allowed(logits, allowed)) is not None:
            return id
    history = History(prompt, output)
    if not (s.greedy or here.calls) and native.available():
        x = logits if allowed is not None and not s.changes else deque(left(logits, s.undrawn, history, allowed), 1).pop().values
        token = sure_draw(x, s, index, len(output), None if s.changes else best, allowed)
        if token is not None:
            return token
    at = deque((run if here.calls else left)(logits, s, history, allowed), 1).pop()
    if s.greedy:
        if allowed is not None:
            finite(at.values)
        return top(at.values)
    assert s.seed is not None
    u = uniform(sibling(s.seed, index), len(output))
    place = int(draw(at.values if here.calls else at.values.double().softmax(0), u))
    return place if at.ids is None else int(at.ids[place])


def largest_allowed(logits: Tensor, allowed: TokenMask) -> int | None:
    """Return the index of the largest of logits [V] that is allowed, by a kernel. None without one, or if that is not finite.

    The full row with -∞, which this replaces, takes 0.3 ms at 152,000 ids.
    """
    if not native.fits_allowed(logits) or (id := native.largest_allowed(logits, allowed.words)) < 0:
        return None
    return id


def sure_draw(x: Tensor, s: Sampling, index: int, written: int, best: int | None = None, allowed: TokenMask | None = None) -> int | None:
    """Draw from x [V], which has passed the stages before the temperature, by a kernel. None without one, or if a sum is too near a bound.

    best: the index of the largest of x, if known.  allowed: the tokens that may come; None allows all.
    """
    if not native.fits_allowed(x):
        return None
    if allowed is not None and (best := largest_allowed(x, allowed)) is None:
        return None
    to = torch.empty(1, dtype=torch.long)
    at = native.argmax(x[None]) if best is None else torch.tensor([best])
    native_draw(x, at, torch.tensor([written]), to, s, index, allowed).run()
    return None if (token := int(to)) < 0 else token


def native_draw(
    x: Tensor, best: Tensor, written: Tensor, to: Tensor, s: Sampling, index: int, allowed: TokenMask | None = None
) -> native.Draw:
    """Return the native draw from x [V] with these settings, for text number `index`. best, written, to: see native.Draw."""
    assert s.seed is not None
    by = 0.0 if s.temperature == OFF["temperature"] else max(s.temperature, COLDEST)
    near = -inf if s.min_p == OFF["min_p"] else log(s.min_p)
    words = None if allowed is None else allowed.words
    return native.Draw(x, best, written, to, state(sibling(s.seed, index)), by, s.top_k, s.top_p, near, words)


def top(x: Tensor) -> int:
    """Return the index of the largest of x [V], the first of ties."""
    return int(native.argmax(x) if native.fits_argmax(x) else x.argmax())


def stages(logits: Tensor, s: Sampling, prompt: Sequence[int] = (), output: Sequence[int] = ()) -> list[tuple[str, Tensor]]:
    """Return `choose`'s stages as (name, row [V]): "logits" and every stage that runs. A cut token has -∞, or the probability 0."""
    return [(stage.name, stage.full_row.clone()) for stage in run(logits, s, History(prompt, output))]
