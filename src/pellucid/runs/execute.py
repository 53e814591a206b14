"""Runs of models: a trace of a prompt, with the candidates for the next token at every step.

A value too large to keep is let go; on request it is computed again by the same run, watched at its path alone. Many or large tables of
scores are only listed; on request one is computed by its op's reference from the inputs of the op, which needs no run of the model and no
place in the queue.
"""

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from pellucid.api.change_values import change_of
from pellucid.api.model import Model
from pellucid.api.trace import trace
from pellucid.errors import RequestError, TraceError, UseError
from pellucid.nn.transformer import Encoder, EncoderDecoder
from pellucid.ops.sampling.settings import Sampling
from pellucid.ops.sampling.stages import choose
from pellucid.runs.answers import Answer, answer, piece_of, tokenizer_of, visible
from pellucid.runs.kept_run import LetGo, Run, kept, summed
from pellucid.runs.limits import Limits
from pellucid.runs.memory_budget import TABLES, TENSORS, largest, require
from pellucid.runs.model_registry import LoadedModel
from pellucid.runs.progress import Progress
from pellucid.runs.request import RunRequest, wrong
from pellucid.runs.stats import stats_of
from pellucid.runs.switched_model import switched
from pellucid.runs.worker import Stop
from pellucid.tracing import Trace, watch
from pellucid.watching.change import Change
from pellucid.watching.meta import META
from pellucid.watching.records import Seen

TABLE = threading.Lock()  # one listed table is computed at a time, of all runs: a second request for the same one waits for it


class Keeping:
    """A watch's `keep` that keeps values within the limits, and beyond them only their stats. progress: counts tensors."""

    def __init__(self, stop: Stop, limits: Limits, progress: Progress) -> None:
        self.stop, self.limits, self.progress, self.size = stop, limits, progress, 0
        self.storages: set[int] = set()

    def __call__(self, x: Tensor) -> Any:
        self.stop.check()
        self.progress.tensors += 1
        if x.is_meta:
            return x
        storage = x.untyped_storage()
        own = 0 if storage.data_ptr() in self.storages else storage.nbytes()
        if x.nbytes > self.limits.value or self.size + own > self.limits.kept // 2:
            return LetGo(stats_of(x) if x.numel() <= self.limits.measured else None)
        self.storages.add(storage.data_ptr())
        self.size += own
        return x.detach()


def run_prompt(loaded: LoadedModel, request: RunRequest, stop: Stop, limits: Limits, progress: Progress | None = None) -> Run:
    """Run a prompt by the model with the request's switches, watched; large tables of scores are only listed.

    progress: is told how far the run has come.
    """
    loaded, progress = switched(loaded, request.switches, limits), progress or Progress()
    if loaded.model is None or not loaded.has_weights:
        return shapes(loaded, request, stop, limits)
    model = loaded.model
    ids = ids_of(model, request.prompt, request.ids, limits)
    require(TENSORS * largest(model.module, min(len(ids), loaded.config.positions or len(ids))), limits)
    progress.prompt = len(ids)
    answers: list[list[Answer]] = []
    tokenizer = tokenizer_of(model)
    choose, text = choosing(loaded, request, ids), None if tokenizer is None else tokenizer.stream()

    def chosen(logits: Tensor) -> int:
        token = choose(logits)
        answers.append([answer(tokenizer, logits, -1, token, limits.candidates)])
        progress.drawn(visible(piece_of(None, token)) if text is None else text.feed(token))
        return token

    changed = changes(loaded, request, limits)
    how: dict[str, Any] = {"keep": Keeping(stop, limits, progress), "terms": True, "edit": changed}
    how["inside"] = "beside" if square(loaded, len(ids) + request.new) <= limits.tables else "listed"
    if isinstance(model.module, Encoder):
        model.check(torch.tensor([ids]))
        traced = trace(model, ids, request.new, **how)
    else:
        traced = trace(model, ids, request.new, chosen, **how)
    traced.model, traced.prompt = loaded.name, request.prompt
    forget(traced)
    run = Run(loaded, traced, answers, request, changed, limits)
    if isinstance(model.module, Encoder) and model.config.head:
        logits = full_record(run, next(n for n, s in enumerate(traced.seen) if s.path == "logits"), stop).value
        rows = zip(traced.blanks, traced.new, strict=True)
        answers.append([answer(tokenizer, logits[0, row], row, new, limits.candidates) for row, new in rows])
    return run


def recorded(loaded: LoadedModel | None, traced: Trace, limits: Limits, folder: object = None) -> Run:
    """Return the run of a trace, with an answer for every step whose logits were recorded. folder: of the trace, for the error."""
    if traced.steps > limits.steps:
        raise TraceError("trace.steps", folder=folder or traced.model, found=traced.steps, most=limits.steps)
    run = Run(loaded, traced, limits=limits)
    logits = {s.step: s.value for s in traced if s.path == "logits" and kept(s) and s.value.ndim == 3 and s.value.is_floating_point()}
    for k in range(traced.steps):
        picks = zip(traced.blanks, traced.new, strict=False) if traced.blanks else ((-1, i) for i in traced.new[k : k + 1])
        x = logits[k][0] if k in logits and len(logits[k]) else torch.empty(0, 0)
        fit = [(row, token) for row, token in picks if row < len(x) > 0 and token < x.shape[1]]
        run.answers.append([answer(run.tokenizer, x[row], row, token, limits.candidates) for row, token in fit])
    return run


def ids_of(model: Model, prompt: str | None, ids: Sequence[int] | None, limits: Limits) -> list[int]:
    """Return the ids of `prompt`, or `ids` themselves. A RequestError if there are more than the limit, a UseError if there are none."""
    if prompt is not None and len(prompt) > limits.letters:
        raise RequestError("server.tokens", 400, "prompt", found=len(prompt), limit=limits.tokens)
    prompt_ids = list(ids) if ids is not None else model.ids(str(prompt))
    if not prompt_ids:
        raise UseError("generate.empty", name="prompt")
    if len(prompt_ids) > limits.tokens:
        raise RequestError("server.tokens", 400, "prompt", found=len(prompt_ids), limit=limits.tokens)
    return prompt_ids


def forget(traced: Trace) -> None:
    """Drop the terms that hold a value which is not kept: terms hold the inputs of their op."""
    gone = {(s.step, s.path) for s in traced if isinstance(s.value, LetGo)}
    for s in traced:
        if any((s.step, path) in gone for path in (s.path, *s.inputs)):
            s.terms = None


def square(loaded: LoadedModel, tokens: int) -> int:
    """Estimate the bytes of all scores, patterns and states for `tokens` tokens."""
    layers = (*loaded.config.layers, *(loaded.config.encoder or ()))
    return sum(8 * one.attn.heads * tokens * tokens + 4 * one.state * tokens for one in layers)


def choosing(loaded: LoadedModel, request: RunRequest, ids: Sequence[int]) -> Callable[[Tensor], int]:
    """Return the function that picks the tokens of a run, one after another. A second one of the same request picks the same."""
    if request.known_tokens:
        known = iter(request.known_tokens)
        return lambda logits: next(known)
    sampling = Sampling.of(request.sampling)
    sampling.check(loaded.config.vocab)
    for step, token in request.forced.items():
        if token >= loaded.config.vocab:
            raise wrong(f"forced.{step}", token, f"0..{loaded.config.vocab - 1}")
    read = ids if loaded.config.starts is None else [loaded.config.starts]
    written: list[int] = []

    def picked(logits: Tensor) -> int:
        written.append(request.forced[len(written)] if len(written) in request.forced else choose(logits, sampling, read, written))
        return written[-1]

    return picked


def traced_alike(loaded: LoadedModel, request: RunRequest, ids: Sequence[int], steps: int, **how: Any) -> Trace:
    """Trace `ids` with the sampling of `request`; an encoder takes no steps. how: settings of the watch."""
    assert loaded.model is not None
    choose = None if isinstance(loaded.model.module, Encoder) else choosing(loaded, request, ids)
    return trace(loaded.model, ids, steps, choose, **how)


def changes(loaded: LoadedModel, request: RunRequest, limits: Limits) -> list[Change]:
    """Return the changes of `request`. A value from another prompt is of a run as long as this one, sampled alike."""
    assert loaded.model is not None
    model, made = loaded.model, list[Change]()
    for c in request.changes:

        def run(prompt: str, path: str = c.path) -> Trace:
            ids = ids_of(model, prompt, ids_in(prompt), limits)
            traced = traced_alike(loaded, request, ids, request.new, only=path)
            return Trace(model.name, prompt, ids, traced.new, traced.seen)

        made.append(change_of(c, run))
    return made


def ids_in(prompt: str) -> list[int] | None:
    """Return the ids of a prompt written as "#1 2 3", for a model without a tokenizer; None for a text."""
    return list(map(int, re.findall(r"\d+", prompt))) if re.fullmatch(r"#\s*\d{1,9}([\s,]+\d{1,9})*\s*", prompt) else None


def shapes(loaded: LoadedModel, request: RunRequest, stop: Stop, limits: Limits) -> Run:
    """Run one forward on meta: the run has every tensor's shape and products, and no number."""
    if request.ids is None and loaded.model is None:
        raise RequestError("server.shapes", 400, "prompt", model=loaded.name)
    ids = list(request.ids) if request.ids is not None else loaded.model.ids(str(request.prompt)) if loaded.model is not None else []
    if not 0 < len(ids) <= min(limits.tokens, loaded.config.positions or limits.tokens):
        raise RequestError(
            "server.tokens", 400, "prompt", found=len(ids), limit=min(limits.tokens, loaded.config.positions or limits.tokens)
        )
    tokens = torch.zeros(1, len(ids), dtype=torch.long, device=META)
    given = (tokens, tokens[:, :1]) if isinstance(loaded.module, EncoderDecoder) else (tokens,)
    with torch.no_grad(), watch(loaded.module, keep=Keeping(stop, limits, Progress())) as seen:
        loaded.module(*given)
    return Run(loaded, Trace(loaded.name, request.prompt, ids, [], seen.seen), [], request, [], limits)


def full_record(run: Run, n: int, stop: Stop, terms: bool = False) -> Seen:
    """Return record `n` with its value, and its terms if `terms`. Computes it again if it is not kept. A RequestError if it has none."""
    s = run.seen(n)
    if isinstance(s.value, Tensor) and s.value.is_meta and s.later is None:
        raise RequestError("server.meta", 400, "n", path=s.path)
    if terms and not summed(run, s):
        raise RequestError("page.given" if s.source == "edited" else "page.unsummed", 400, "n")
    if kept(s) and (not terms or s.terms is not None):
        return s
    if (record := run.latest(n)) is not None:
        return record
    if s.later is None:
        return run.renew(n, lambda: recomputed(run, s, stop))
    with TABLE:
        return run.latest(n) or run.renew(n, lambda: score_table(run, s))


def score_table(run: Run, s: Seen) -> Seen:
    """Compute scores or a pattern from the inputs of their op. A RequestError if it is too large."""
    assert s.later is not None
    size = prod(s.shape) * s.dtype.itemsize
    if size > run.limits.table:
        raise RequestError("server.table", 413, "n", path=s.path, size=size, limit=run.limits.table)
    require(TABLES * size, run.limits)
    return s.later()


def recomputed(run: Run, s: Seen, stop: Stop) -> Seen:
    """Run the request again, watched at the path of `s` alone, and return the record with value and terms."""
    assert run.loaded is not None and run.model is not None and run.request is not None
    changes = [replace(c, required=False) for c in run.changes]  # some act in later steps alone
    if run.request.known_tokens and s.path.startswith("sample."):  # tokens that are known are not sampled again
        raise RequestError("page.unsummed", 400, "n")
    how: dict[str, Any] = {"keep": stop.keep, "terms": True, "edit": changes, "only": s.path}
    traced = traced_alike(run.loaded, run.request, run.trace.ids, 1 if run.kind == "encoder" else s.step + 1, **how)
    (record,) = (r for r in traced if (r.step, r.call) == (s.step, s.call))
    return record
