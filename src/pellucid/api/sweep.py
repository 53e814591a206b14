"""Sweeps: one number of a run under each of many changes. The runs are rows of common batches, and each can be run again alone.

s = patch(model, "The capital of France is", "The capital of Japan is", over="layers.*.attn.z", by="H T", metric=(" Paris", " Tokyo"))
s.values                       # [path H T]
s.run("layers.3.attn.z", H=1, T=4)
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from pellucid.api.model import Model
from pellucid.api.trace import trace
from pellucid.batch.mask import prefix
from pellucid.batch.step import Step
from pellucid.errors import TraceError, UseError
from pellucid.nn.transformer import Decoder, EncoderDecoder
from pellucid.notebook import checked
from pellucid.ops.sampling.stages import logprobs
from pellucid.tracing import Trace, watch
from pellucid.watching.change import Cells, Change, mean, take, zero
from pellucid.watching.watch import Records, Seen

ROWS = 2048  # of one batch: trials times tokens
Metric = str | tuple[str, str] | Callable[[Tensor], Tensor]
How = Literal["zero", "mean"]


@dataclass(frozen=True)
class Trial:
    """One change of a sweep: the tensor, and the index of each axis that the sweep goes over."""

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
    change: Callable[[Trial], Change] = field(repr=False)
    again: Callable[[Sequence[Change]], Trace] = field(repr=False)

    def best(self, count: int = 5) -> list[tuple[str, dict[str, int], float]]:
        """Return the changes that move the number furthest from the base: (path, {letter: index}, number)."""
        flat = (self.values - self.base).abs().flatten()
        places = [torch.unravel_index(i, self.values.shape) for i in flat.argsort(descending=True)[:count]]
        rows = [tuple(int(n) for n in place) for place in places]
        return [(self.paths[path], dict(zip(self.by, at, strict=True)), float(self.values[path, *at])) for path, *at in rows]

    def run(self, path: str, **at: int) -> Trace:
        """Run one change alone, with every tensor recorded. A UseError for a path or an axis that the sweep does not go over."""
        if path not in self.paths or set(at) != set(self.by):
            raise UseError("sweep.cell", found=", ".join([path, *at]), paths=", ".join(self.paths[:4]), by=", ".join(self.by))
        return self.again([self.change(Trial(path, tuple(at[letter] for letter in self.by)))])


@checked
def patch(model: Model, clean: str | Sequence[int], corrupted: str | Sequence[int], over: str, by: str, metric: Metric) -> Sweep:
    """Put cells of the run of `clean` into the run of `corrupted`, one trial for each index along `by`, and return the number of each.

    over: paths of tensors, with `*`.  by: axis letters, "H T".  metric: two words, whose logits are subtracted; a word, for its
    log-probability; or f(logits [n V]) -> [n].  A UseError if the prompts have not as many tokens.
    """
    source = trace(model, clean, only=over)
    other = ids_of(model, corrupted)
    if len(source.ids) != len(other):
        raise UseError("sweep.lengths", clean="|".join(pieces(model, source.ids)), corrupted="|".join(pieces(model, other)))
    records = swept(source, by)
    measure, name = measured(model, metric)
    values = {s.path: s.value for s in records}
    trials = trials_of(records, by)
    dims = {s.path: s.dims.split() for s in records}
    numbers = [measure(x) for x in batches(model, other, trials, letters(by), dims, values)]
    shape = len(records), *sizes(records[0], by)
    base, clean_number = (float(measure(last_logits(model, [ids], [])[:, 0])) for ids in (other, source.ids))

    def change(trial: Trial) -> Change:
        at: dict[str, Any] = dict(zip(letters(by), trial.at, strict=True))
        return take(trial.path, source, **at)

    def again(changes: Sequence[Change]) -> Trace:
        return trace(model, other, edit=changes)

    table = torch.cat(numbers).double().reshape(shape)
    return Sweep(table, [s.path for s in records], letters(by), base, clean_number, name, pieces(model, other), change, again)


@checked
def ablate(model: Model, texts: str | Sequence[str], over: str, by: str, how: How = "zero", metric: Metric | None = None) -> Sweep:
    """Set cells to zero, or to their mean over all texts and positions, one trial for each index along `by`; return the mean over texts.

    metric: as in `patch`; by default the loss, the mean negative log-probability of a text's own tokens after the first, in nats.
    """
    if how not in ("zero", "mean"):
        raise UseError("sweep.how", found=repr(how))
    prompts = [ids_of(model, text) for text in ([texts] if isinstance(texts, str) else texts)]
    if not prompts or "T" in letters(by):
        raise UseError("sweep.texts", found=len(prompts), by=by)
    if metric is None and (type(model.module) is not Decoder or any(len(ids) < 2 for ids in prompts)):
        raise UseError("sweep.loss", model=model.name)
    measure, name = measured(model, metric) if metric is not None else (None, "loss")
    runs = [trace(model, ids, only=over) for ids in prompts]
    everything = Records()
    everything.seen = [s for run in runs for s in run]
    total, bases = torch.zeros(()), list[float]()
    records = swept(runs[0], by)
    dims, trials = {s.path: s.dims.split() for s in records}, trials_of(records, by)
    for ids, run in zip(prompts, runs, strict=True):
        cells = {s.path: torch.zeros_like(s.value) if how == "zero" else averaged(everything, s) for s in swept(run, by)}
        every_row = measure is None
        numbers = [measure(x) if measure else loss(x, ids) for x in batches(model, ids, trials, letters(by), dims, cells, every_row)]
        plain = last_logits(model, [ids], [], every_row)
        bases.append(float(measure(plain[:, 0]) if measure else loss(plain, ids)))
        total = total + torch.cat(numbers).double() / len(prompts)

    def change(trial: Trial) -> Change:
        at = dict(zip(letters(by), trial.at, strict=True))
        return zero(trial.path, **at) if how == "zero" else mean(trial.path, everything, **at)

    def again(changes: Sequence[Change]) -> Trace:
        return trace(model, prompts[0], edit=changes)

    shape, base = (len(records), *sizes(records[0], by)), sum(bases) / len(bases)
    return Sweep(total.reshape(shape), [s.path for s in records], letters(by), base, None, name, pieces(model, prompts[0]), change, again)


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


def batches(
    model: Model, ids: Sequence[int], trials: Sequence[Trial], by: tuple[str, ...], dims: Mapping[str, list[str]],
    cells: Mapping[str, Tensor], every_row: bool = False,
) -> Iterator[Tensor]:  # fmt: skip
    """Yield the logits [n V] of the answering row of each trial, or with `every_row` of every row [n T V], a batch at a time.

    cells: {path: a tensor of one text, whose cells the trials take}.
    """
    count = max(1, ROWS // len(ids))
    for first in range(0, len(trials), count):
        group = trials[first : first + count]
        edits = []
        for path in dict.fromkeys(t.path for t in group):
            rows = torch.tensor([n for n, t in enumerate(group) if t.path == path])
            at = torch.tensor([t.at for t in group if t.path == path])
            edits.append(cells_of_rows(path, dims[path], by, rows, at, cells[path]))
        logits = last_logits(model, [ids] * len(group), edits, every_row)
        yield logits if every_row else logits[:, 0]


def cells_of_rows(path: str, dims: list[str], by: tuple[str, ...], rows: Tensor, at: Tensor, cells: Tensor) -> Change:
    """Return the change that gives each row of a batch its own cells. rows: of the trials.  at: [n, axes of by]."""
    own: dict[str, Any] = {letter: at[:, k] for k, letter in enumerate(by)}
    index = tuple(rows if d == "B" else own.get(d, slice(None)) for d in dims)
    source = tuple(torch.zeros_like(rows) if d == "B" else own.get(d, slice(None)) for d in dims)

    def become(x: Tensor, which: object) -> Tensor:
        x[index] = cells[source].to(x)
        return x

    return Change(path, become, path)


def last_logits(model: Model, texts: Sequence[Sequence[int]], edit: Sequence[Change], every_row: bool = False) -> Tensor:
    """Return the logits of the answering row of each text [n 1 V], with `every_row` of every row [n T V]. Texts are equally long."""
    ids = torch.tensor(texts, device=model.device)
    model.check(ids)
    step = Step.plain(ids, mask=prefix(ids.shape[1]) if model.config.prefix and not every_row else None)
    blanks = model.blanks(texts[0])
    step.wanted = None if every_row else torch.tensor([blanks[0] if blanks else ids.shape[1] - 1], device=ids.device)
    with torch.no_grad(), watch(model, only=(), edit=edit):
        if isinstance(model.module, Decoder):
            return model.module(ids, step)  # type: ignore[no-any-return]
        assert isinstance(model.module, EncoderDecoder) and model.config.starts is not None
        return model.module(ids, torch.full((len(ids), 1), model.config.starts, device=ids.device))  # type: ignore[no-any-return]


def measured(model: Model, metric: Metric) -> tuple[Callable[[Tensor], Tensor], str]:
    """Return the function from logits [n V] to numbers [n], and its name. A UseError for a word that is not one token."""
    if callable(metric):
        return metric, getattr(metric, "__name__", "number")
    words = [metric] if isinstance(metric, str) else list(metric)
    if len(words) not in (1, 2):
        raise UseError("sweep.metric", found=repr(metric))
    ids = list[int]()
    for word in words:
        own = model.tokenizer.encode(word, special=False)
        if len(own) != 1:
            raise UseError("sweep.word", word=word, pieces="|".join(pieces(model, own)))
        ids += own
    if len(ids) == 1:
        return lambda logits: logprobs(logits)[:, ids[0]], f"log p({words[0]})"
    return lambda logits: logits[:, ids[0]] - logits[:, ids[1]], f"logit({words[0]}) − logit({words[1]})"


def loss(logits: Tensor, ids: Sequence[int]) -> Tensor:
    """Return the mean negative log-probability of a text's own tokens after the first, of each row of logits [n T V]: [n]."""
    after = torch.tensor(ids[1:], device=logits.device).expand(len(logits), -1)
    return -logprobs(logits[:, :-1]).gather(-1, after[..., None])[..., 0].mean(-1)


def averaged(others: Records, like: Seen) -> Tensor:
    """Return a tensor shaped as `like` whose cells are their means over all texts and positions of `others`."""
    change, numbers = mean(like.path, others), [torch.arange(n) for n in like.shape]
    return change.become(like.value, Cells(like.path, change.text, like.dims.split(), numbers, (), {}))


def ids_of(model: Model, prompt: str | Sequence[int]) -> list[int]:
    """Return the ids of a prompt. A UseError for an empty one."""
    ids = model.ids(prompt) if isinstance(prompt, str) else list(prompt)
    if not ids:
        raise UseError("generate.empty", name="prompt")
    return ids


def pieces(model: Model, ids: Sequence[int]) -> list[str]:
    """Return the pieces of ids; for a model without a tokenizer the ids."""
    return list(map(str, ids)) if model._tokenizer is None else [piece.text for piece in model.tokenizer.pieces(ids)]
