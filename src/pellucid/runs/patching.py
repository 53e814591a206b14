"""A sweep on request: cells of one prompt's run put into another's, one after another, within the limits, until the client leaves."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pellucid.api.metrics import one_token
from pellucid.api.model import Model
from pellucid.api.sweep import CleanRun, Sweep, clean_run, letters, patched, sizes
from pellucid.errors import RequestError, UseError
from pellucid.runs.answers import piece_of, tokenizer_of, visible
from pellucid.runs.execute import ids_of
from pellucid.runs.limits import Limits
from pellucid.runs.memory_budget import TENSORS, largest, require
from pellucid.runs.model_registry import LoadedModel
from pellucid.runs.request import described, known, switches_of, text, wrong
from pellucid.runs.switched_model import switched
from pellucid.runs.worker import Stop

FIELDS = ("model", "clean", "changed", "over", "by", "metric", "with")


@dataclass(frozen=True)
class SweepRequest:
    """A request for a sweep: cells of the run of `clean` are put into the run of `changed`. words: compared; None: both answers."""

    model: str
    clean: str
    changed: str
    over: str
    by: str
    words: tuple[str, str] | None
    switches: tuple[str, ...]


def sweep_of(body: Mapping[str, Any], limits: Limits) -> SweepRequest:
    """Read a request from `body`. A RequestError for a wrong field."""
    known(body, FIELDS, "")
    metric = body.get("metric")
    if metric is not None and not (isinstance(metric, list) and len(metric) == 2 and all(isinstance(w, str) and w for w in metric)):
        raise wrong("metric", described(metric), '["...", "..."]')
    words = None if metric is None else (str(metric[0]), str(metric[1]))
    model, clean, changed, over, by = (text(body, name) for name in ("model", "clean", "changed", "over", "by"))
    return SweepRequest(model, clean, changed, over, by, words, switches_of(body, limits))


def run_sweep(loaded: LoadedModel, request: SweepRequest, stop: Stop, limits: Limits) -> tuple[Model, Sweep]:
    """Run a sweep. Returns the model that ran, and the sweep. A RequestError if it has more trials than the limit."""
    model = switched(loaded, request.switches, limits).model
    if model is None or not loaded.has_weights:
        raise RequestError("server.meta", 400, "model", path=loaded.name)
    clean, changed = (ids_of(model, prompt, None, limits) for prompt in (request.clean, request.changed))
    require(TENSORS * largest(model.module, limits.sweep_rows), limits)
    run = clean_run(model, clean, request.over, stop.keep)
    swept = [s for s in run.records if s.call == 0]
    if swept and set(letters(request.by)) <= {*swept[0].dims.split()}:
        trials = len(swept) * torch.Size(sizes(swept[0], request.by)).numel()
        if trials > limits.trials:
            raise RequestError("server.trials", 400, "by", found=trials, limit=limits.trials)
    words = request.words or answers_of(model, run, changed)
    return model, patched(model, run, changed, request.by, difference(model, words, stop))


def answers_of(model: Model, clean: CleanRun, changed: list[int]) -> tuple[int, int]:
    """Return the likeliest next tokens of two prompts. A UseError if they are one and the same, which no number can tell apart."""
    if clean.answer is None or (other := clean_run(model, changed, "logits").answer) is None:
        raise UseError("lens.head", model=model.name)
    first, second = int(clean.answer.argmax()), int(other.argmax())
    if first == second:
        raise UseError("sweep.same", token=visible(piece_of(tokenizer_of(model), first)) or first)
    return first, second


def difference(model: Model, words: tuple[str, str] | tuple[int, int], stop: Stop) -> Callable[[Tensor], Tensor]:
    """Return the logit of one token less another's, as a function of logits [n V] that ends when the client has left."""
    a, b = (one_token(model, word) if isinstance(word, str) else word for word in words)

    def number(logits: Tensor) -> Tensor:
        stop.check()
        return logits[:, a] - logits[:, b]

    names = [visible(piece_of(tokenizer_of(model), i)) or str(i) for i in (a, b)]
    number.__name__ = f"logit({names[0]}) − logit({names[1]})"
    return number
