"""Sweeps: one number of a run under each of many changes. The runs are forks of one, and each can be run again alone.

s = patch(model, "The capital of France is", "The capital of Japan is", over="layers.*.attn.z", by="H T", metric=(" Paris", " Tokyo"))
s.values                       # [path H T]
s.run("layers.3.attn.z", H=1, T=4)
"""

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor

from pellucid.api.metrics import Measure, Metric, measured, pieces
from pellucid.api.model import Model
from pellucid.api.noise import Noise
from pellucid.api.trace import trace
from pellucid.arguments import checked
from pellucid.engine.forks import Forks
from pellucid.errors import TraceError, UseError
from pellucid.ops import native
from pellucid.tracing import Trace, resolved
from pellucid.watching.change import Averages, Change, Taken, as_changes, mean, take, zero
from pellucid.watching.records import Records, Seen

How = Literal["zero", "mean", "resample"] | Callable[..., Change]


@dataclass(frozen=True)
class Trial:
    """One change of a grid: the tensor, and the index of each axis that the sweep goes over."""

    path: str
    at: tuple[int, ...]


@dataclass(eq=False)
class Sweep:
    """One number under each change. values: [path, and an axis for each letter of `by`].  base: the number without a change.

    clean: of the run that values are taken from, None if there is none.  metric: the number's name.  pieces: of the changed prompt.
    """

    values: Tensor
    paths: list[str]
    by: tuple[str, ...]
    base: float
    clean: float | None
    metric: str
    pieces: list[str]
    changes: Callable[[Trial], Sequence[Change]] = field(repr=False)  # of a trial
    again: Callable[[Sequence[Change]], Trace] = field(repr=False)

    def best(self, count: int = 5) -> list[tuple[str, dict[str, int], float]]:
        """Return the changes that move the number furthest from the base: (path, {letter: index}, number)."""
        flat = (self.values - self.base).abs().flatten()
        places = [torch.unravel_index(i, self.values.shape) for i in flat.argsort(descending=True)[:count]]
        rows = [tuple(int(n) for n in place) for place in places]
        return [(self.paths[path], dict(zip(self.by, at, strict=True)), float(self.values[path, *at])) for path, *at in rows]

    def run(self, path: str, **at: int) -> Trace:
        """Run one change alone, with every tensor recorded; of noise the first draw, of texts the first.

        A UseError for a path or an axis that the sweep does not go over.
        """
        if path not in self.paths or set(at) != set(self.by):
            raise UseError("sweep.cell", found=", ".join([path, *at]), paths=", ".join(self.paths[:4]), by=", ".join(self.by))
        return self.again(self.changes(Trial(path, tuple(at[letter] for letter in self.by))))


@dataclass(eq=False)
class KeyedSweep:
    """One number under the changes of each trial. values: {key: number}.  base: the number without a change.

    metric: the number's name.  pieces: of the prompt.
    """

    values: dict[Any, float]
    base: float
    metric: str
    pieces: list[str]
    trials: dict[Any, list[Change]] = field(repr=False)
    again: Callable[[Sequence[Change]], Trace] = field(repr=False)

    def best(self, count: int = 5) -> list[tuple[Any, float]]:
        """Return the trials that move the number furthest from the base: (key, number)."""
        return sorted(self.values.items(), key=lambda each: -abs(each[1] - self.base))[:count]

    def run(self, key: Hashable) -> Trace:
        """Run one trial alone, with every tensor recorded. A UseError for a key that the sweep does not have."""
        if key not in self.trials:
            raise UseError("sweep.key", found=repr(key), keys=", ".join(map(repr, list(self.trials)[:4])))
        return self.again(self.trials[key])


@checked
def sweep(
    model: Model,
    prompt: str | Sequence[int] | Tensor,
    trials: Mapping[Any, Change | Sequence[Change]],
    metric: Metric,
    deterministic: bool = False,
) -> KeyedSweep:
    """Run a prompt once under the changes of each trial, {key: changes of any kind}, and return the number of each.

    metric: two words, whose logits are subtracted; a word, for its log-probability; `continuation(words)`; "kl", the divergence of the
    answer from the answer without a change; "loss", the mean negative log-probability of the prompt's own tokens after the first, in
    nats; or f(logits [n V]) -> [n].  deterministic: each number has the bits of its lone run; see Engine.of.
    """
    ids, own = ids_of(model, prompt), {key: as_changes(changes) for key, changes in trials.items()}
    measure = measured(model, metric, ids)
    values, unchanged = dict.fromkeys(own, 0.0), None
    for first, group in by_first(own).items():
        lead = [] if first is None else [first]
        rest = [own[key][len(lead) :] for key in group]
        forks = fork(model, ids, measure, lead, deterministic, taken_from(model, rest))
        unchanged = forks.logits if unchanged is None else unchanged
        values |= zip(group, numbers(model, forks, rest, measure, unchanged).tolist(), strict=True)
    assert unchanged is not None
    base = float(measure.number(unchanged[None], unchanged))
    return KeyedSweep(values, base, measure.name, pieces(model, ids), own, again(model, ids, deterministic=deterministic))


def by_first(trials: Mapping[Any, Sequence[Change]]) -> dict[Change | None, list[Any]]:
    """Return the keys of trials by the change with which they begin, which are forks of the run that it changes alone.

    None, which comes first: of the trials whose first change is no other's.
    """
    first = {key: changes[0] for key, changes in trials.items() if len(changes) > 1}
    shared = Counter(first.values())
    out = dict[Change | None, list[Any]]({None: []})
    for key in trials:
        own = first.get(key)
        out.setdefault(own if own is not None and shared[own] > 1 else None, []).append(key)
    return out


def taken_from(model: Model, trials: Iterable[Sequence[Change]]) -> set[str]:
    """Return the paths of tensors of which a trial takes cells from another run."""
    by_name = {c.path: c for changes in trials for c in changes if isinstance(c.become, Taken)}
    return {c.path for c in resolved(model, [list(by_name.values())])[0]}


@checked
def patch(
    model: Model,
    clean: str | Sequence[int] | Tensor,
    corrupted: str | Sequence[int] | Tensor | Noise,
    over: str,
    by: str,
    metric: Metric,
    deterministic: bool = False,
) -> Sweep:
    """Put cells of the run of `clean` into the run of `corrupted`, one trial for each index along `by`, and return the number of each.

    corrupted: another prompt of as many tokens, or `noise(word)` on the embeddings of the same.  over: paths of tensors, with `*`.
    by: axis letters, "H T".  metric, deterministic: as in `sweep`.
    """
    with kernels(deterministic):
        source = clean_run(model, clean, over)
    return patched(model, source, corrupted, by, metric, deterministic)


@dataclass(frozen=True, eq=False)
class CleanRun:
    """A run that values are taken from: the records of the tensors that a sweep goes over, and the logits [1 V] of its answer.

    answer: None of a model without a head.
    """

    records: Trace
    answer: Tensor | None


def clean_run(model: Model, prompt: str | Sequence[int] | Tensor, over: str, keep: Callable[[Tensor], Any] | None = None) -> CleanRun:
    """Run a prompt once for both. keep: of `trace`."""
    if not model.config.head:
        return CleanRun(trace(model, prompt, only=over, keep=keep), None)
    run = trace(model, prompt, only=[over, "logits"], keep=keep)
    answer = run.last_logits(0, run.blanks[0] if run.blanks else -1)[None].clone()
    if not fnmatchcase("logits", over) and any(s.path != "logits" for s in run):
        run.seen = [s for s in run if s.path != "logits"]
    return CleanRun(run, answer)


def patched(
    model: Model, clean: CleanRun, corrupted: str | Sequence[int] | Tensor | Noise, by: str, metric: Metric, deterministic: bool = False
) -> Sweep:
    """Put cells of a clean run into the run of `corrupted`; see `patch`."""
    source, edits = clean.records, list[list[Change]]([[]])
    if isinstance(corrupted, Noise):
        other, edits = source.ids, [[change] for change in corrupted.changes(model, source.ids)]
    else:
        other = ids_of(model, corrupted)
    if len(source.ids) != len(other):
        raise UseError("sweep.lengths", clean="|".join(pieces(model, source.ids)), corrupted="|".join(pieces(model, other)))
    records = swept(source, by)
    measure = measured(model, metric, other)
    trials = trials_of(records, by)

    def change(trial: Trial) -> Change:
        at: dict[str, Any] = dict(zip(letters(by), trial.at, strict=True))
        return take(trial.path, source, **at)

    table, base, clean_number = torch.zeros(()), 0.0, 0.0
    own, unchanged = measured(model, metric, source.ids), clean.answer
    if unchanged is None or own.scored or own.more:
        unchanged = fork(model, source.ids, own, deterministic=deterministic).logits
    for edit in edits:
        forks = fork(model, other, measure, edit, deterministic, {s.path for s in records})
        table = table + numbers(model, forks, [[change(trial)] for trial in trials], measure) / len(edits)
        base += float(measure.number(forks.logits[None], forks.logits)) / len(edits)
        clean_number += float(own.number(unchanged[None], forks.logits)) / len(edits)
    table = table.reshape(len(records), *sizes(records[0], by))
    run = again(model, other, edits[0], deterministic)
    return Sweep(
        table, [s.path for s in records], letters(by), base, clean_number, measure.name, pieces(model, other), lambda t: [change(t)], run
    )


@checked
def ablate(
    model: Model,
    texts: str | Sequence[str],
    over: str,
    by: str,
    how: How = "zero",
    metric: Metric = "loss",
    seed: int = 0,
    deterministic: bool = False,
) -> Sweep:
    """Take out what cells say, one trial for each index along `by`, and return the mean number over texts.

    how: "zero"; "mean", of the cells over all texts and positions; "resample", the cells of another text, chosen by `seed`; or a
    function (path, **at) -> Change, such as `functools.partial(without, direction=v)`.  metric, deterministic: as in `sweep`.
    """
    if how not in ("zero", "mean", "resample") and not callable(how):
        raise UseError("sweep.how", found=repr(how))
    prompts = [ids_of(model, text) for text in ([texts] if isinstance(texts, str) else texts)]
    if not prompts or "T" in letters(by):
        raise UseError("sweep.texts", found=len(prompts), by=by)
    if how == "resample" and len(prompts) < 2:
        raise UseError("sweep.resample", found=len(prompts))
    measures = [measured(model, metric, ids) for ids in prompts]
    with kernels(deterministic):
        runs = [trace(model, ids, only=over) for ids in prompts]
    everything = Records()
    everything.seen = [s for run in runs for s in run]
    averages = Averages(everything)
    draw = torch.Generator().manual_seed(seed)
    others = [(i + 1 + int(torch.randint(len(runs) - 1, (), generator=draw))) % len(runs) if runs[1:] else i for i in range(len(runs))]
    records = swept(runs[0], by)
    trials = trials_of(records, by)

    def change(trial: Trial, text: int = 0) -> Change:
        at: dict[str, Any] = dict(zip(letters(by), trial.at, strict=True))
        if callable(how):
            return how(trial.path, **at)
        if how == "resample":
            return take(trial.path, runs[others[text]], **at)
        return zero(trial.path, **at) if how == "zero" else mean(trial.path, averages, **at)

    total, base = torch.zeros(()), 0.0
    for text, (ids, measure) in enumerate(zip(prompts, measures, strict=True)):
        forks = fork(model, ids, measure, deterministic=deterministic)
        total = total + numbers(model, forks, [[change(trial, text)] for trial in trials], measure) / len(prompts)
        base += float(measure.number(forks.logits[None], forks.logits)) / len(prompts)
    table = total.reshape(len(records), *sizes(records[0], by))
    paths, run = [s.path for s in records], again(model, prompts[0], deterministic=deterministic)
    return Sweep(table, paths, letters(by), base, None, measures[0].name, pieces(model, prompts[0]), lambda t: [change(t)], run)


def kernels(deterministic: bool) -> Any:
    """Return the context in which a row has the same bits in any batch, or one that changes nothing."""
    return native.any_rows() if deterministic else nullcontext()


def again(
    model: Model, ids: Sequence[int], edit: Sequence[Change] = (), deterministic: bool = False
) -> Callable[[Sequence[Change]], Trace]:
    """Return the function that runs these ids under `edit` and more changes, with every tensor recorded."""

    def run(changes: Sequence[Change]) -> Trace:
        with kernels(deterministic):
            return trace(model, ids, edit=[*edit, *changes])

    return run


def fork(
    model: Model,
    ids: Sequence[int],
    measure: Measure,
    edit: Sequence[Change] = (),
    deterministic: bool = False,
    compared: Collection[str] = (),
) -> Forks:
    """Run ids once, for forks that a measure can tell apart. edit, compared: of `Forks`."""
    return Forks(model.module, measure.text(model, ids), resolved(model, [edit])[0], deterministic, compared)


def numbers(model: Model, forks: Forks, trials: Sequence[Sequence[Change]], measure: Measure, unchanged: Tensor | None = None) -> Tensor:
    """Return the number of each trial [trials] in float64. unchanged: the logits that a divergence is counted from, the forks' run's."""
    out = torch.zeros(len(trials), dtype=torch.float64)
    for which, logits in forks.run(resolved(model, trials)):
        out[which] = measure.number(logits, forks.logits if unchanged is None else unchanged).to(out)
    return out


def letters(by: str) -> tuple[str, ...]:
    """Return the axis letters of "H T" or "H,T"."""
    return tuple(by.replace(",", " ").split())


def swept(run: Trace, by: str) -> list[Seen]:
    """Return the records of a sweep's tensors. A UseError for an axis that one lacks, a TraceError for unequal sizes along one."""
    records = [s for s in run if s.call == 0]
    for s in records:
        if not letters(by) or not set(letters(by)) <= {*s.dims.split()} - {"B"}:
            raise UseError("sweep.axes", found=by, path=s.path, allowed=" ".join(d for d in s.dims.split() if d != "B"))
        if sizes(s, by) != sizes(records[0], by):
            raise TraceError("sweep.sizes", path=s.path, other=records[0].path, by=by)
    return records


def sizes(s: Seen, by: str) -> list[int]:
    """Return the sizes of a record's axes."""
    return [s.shape[s.dims.split().index(letter)] for letter in letters(by)]


def trials_of(records: Sequence[Seen], by: str) -> list[Trial]:
    """Return a trial for each tensor and each index along `by`."""
    return [Trial(s.path, at) for s in records for at in itertools.product(*map(range, sizes(s, by)))]


def ids_of(model: Model, prompt: str | Sequence[int] | Tensor) -> list[int]:
    """Return the ids of a prompt. A UseError for an empty one."""
    ids = model.prompt_ids(prompt)
    if not ids:
        raise UseError("generate.empty", name="prompt")
    return ids
