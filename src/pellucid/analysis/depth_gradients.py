"""How a loss's gradient fares on its way back through the blocks, and what a norm keeps of a row."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pellucid.analysis.lens import leaving
from pellucid.analysis.rows import stream
from pellucid.api.model import Model
from pellucid.nn.norm import NORMS
from pellucid.ops.sampling.stages import logprobs
from pellucid.tracing import Trace, watch
from pellucid.watching.change import Change


def depth_gradients(model: Model, prompt: str | Sequence[int] | Tensor, token: int, edit: Sequence[Change] = ()) -> dict[str, float]:
    """Return the size of the gradient of -log p(token) after a prompt, at the stream that leaves each block. No weight gets one.

    edit: changes of the run.
    """
    paths = leaving(model.module)
    ids = torch.tensor([model.prompt_ids(prompt)], device=model.device)
    with torch.enable_grad(), watch(model, only=paths, grad=True, edit=list(edit)) as seen:
        loss = -logprobs(model(ids, rows=-1)[0, -1])[token]
        gradients = torch.autograd.grad(loss, [seen[path].value for path in paths])
    return {path: float(gradient.double().norm()) for path, gradient in zip(paths, gradients, strict=True)}


def growth(gradients: dict[str, float]) -> float:
    """Return by what the gradient of the first block exceeds that of the last."""
    sizes = list(gradients.values())
    return sizes[0] / sizes[-1] if sizes[-1] else 0.0


def times_apart(a: float, b: float) -> float:
    """Return how many times the smaller of two sizes the larger is. Infinity where one alone is 0."""
    low, high = sorted((a, b))
    return high / low if low else math.inf if high else 1.0


def one_less(cosine: float) -> float:
    """Return how far a cosine is from 1."""
    return abs(1 - cosine)


def answer_of(run: Trace) -> int:
    """Return the likeliest token after a run's prompt."""
    return int(run.last_logits(0).argmax())


@dataclass(frozen=True)
class NormKept:
    """What a norm without weights does to a row. parameters: of one with weights.  cosine: of the row and its norm, the least of a run."""

    parameters: int
    cosine: float


def norm_kept(run: Trace, kind: str) -> NormKept:
    """Norm each row of a run's stream by a norm of a kind, "rms" or "layer", whose weights are as they are made: ones, biases zero."""
    rows = torch.cat([s.value[0].double() for s in stream(run)])
    norm = NORMS[kind](rows.shape[-1], run.runner.config.eps).requires_grad_(False)
    for p in norm.parameters():
        p.data = p.data.to(rows)
    cosines: Tensor = torch.nn.functional.cosine_similarity(rows, norm(rows), dim=-1)
    return NormKept(sum(p.numel() for p in norm.parameters()), float(cosines.min()))
