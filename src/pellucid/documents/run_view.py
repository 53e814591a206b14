"""A run viewed step by step: each tensor in the order in which it was made, with its value and formula, and the answers."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from pellucid.api.model import Model
from pellucid.api.trace import outlined, trace
from pellucid.axes import parse, show
from pellucid.counting.weights import Weight, by_first_use
from pellucid.documents.formula import block, formula
from pellucid.errors import UseError
from pellucid.runs import execute
from pellucid.runs.answers import Answer
from pellucid.runs.kept_run import Run
from pellucid.runs.limits import LIMITS
from pellucid.runs.model_registry import LoadedModel
from pellucid.runs.request import RunRequest
from pellucid.tokenizer.pieces import Piece
from pellucid.tracing import Trace
from pellucid.watching.records import Seen


@dataclass(frozen=True)
class TensorView:
    """A tensor of a run: its place, formula, weights and values.

    own: of its weights, those that no earlier tensor of its step used, so that the tensors of a block sum to the block.
    """

    seen: Seen
    block: str  # "layers.0", or "" outside of blocks
    name: str  # within the block
    made: str
    weights: tuple[Weight, ...]
    value: Tensor
    dims: str
    own: tuple[Weight, ...] = ()

    @property
    def sizes(self) -> str:
        """Return its axes but the batch, with their sizes: "T 5, H 4, K 32"."""
        named = zip((show(axis) for axis in parse(self.dims)), self.value.shape, strict=True)
        return ", ".join(f"{axis} {n}" for axis, n in named if axis != "B")

    @property
    def range(self) -> tuple[float, float, float]:
        """Return the least, mean and greatest value; the mean is taken in float64."""
        if self.value.numel() == 0 or self.value.is_meta:
            return (float("nan"),) * 3
        low, high = (x.item() * 1 for x in (self.value.min(), self.value.max()))  # of a mask 0 and 1
        return low, float(self.value.double().mean()), high

    def of_head(self, head: int, heads: int) -> "TensorView":
        """Return the view of one query head, or of the key/value head that it reads; the tensor itself if it has no heads."""
        axes = self.dims.split()
        at = next((axes.index(a) for a in "HG" if a in axes), None)
        if at is None:
            return self
        n = self.value.shape[at]
        index = head if axes[at] == "H" else head * n // heads
        dims = " ".join(a for i, a in enumerate(axes) if i != at)
        return TensorView(self.seen, self.block, self.name, self.made, self.weights, self.value.select(at, index), dims, self.own)


@dataclass(frozen=True)
class StepView:
    """A step of a run: its input ids, its tensors and its answers, of an encoder one for each blank."""

    fed: list[int]
    cached: int  # rows in the KV cache before
    tensors: list[TensorView]
    answers: list[Answer]


@dataclass
class RunView:
    """A run of a model, step by step."""

    run: Run
    model: Model
    steps: list[StepView] = field(default_factory=list)

    @property
    def trace(self) -> Trace:
        return self.run.trace

    @property
    def pieces(self) -> list[Piece]:
        """Return the pieces of the prompt."""
        return [self.run.token(i) for i in self.trace.ids]

    @property
    def heads(self) -> int:
        """Return the number of query heads, the same in all blocks that attend."""
        return self.model.config.heads

    def blocks(self) -> list[str]:
        """Return the blocks of the first step, in order."""
        return list(dict.fromkeys(tensor.block for tensor in self.steps[0].tensors if tensor.block))


def explain(model: Model, prompt: str | Sequence[int], steps: int = 1, best: int = 5, **how: Any) -> RunView:
    """Run a prompt, watched, and view the run. best: candidates of an answer.  how: `watch`'s settings."""
    if steps < 1:
        raise UseError("explain.steps", found=steps)
    if best < 1:
        raise UseError("explain.top", found=best)
    if isinstance(prompt, str) and not prompt:
        raise UseError("generate.empty", name="prompt")
    if model.device.type == "meta":
        return view_of(model, outlined(model, prompt, steps), best)
    return view_of(model, trace(model, prompt, steps, **how), best)


def view_of(model: Model, recorded: Trace, best: int = 5) -> RunView:
    """View a trace of this model. Its tensors are measured whatever their size."""
    limits = replace(LIMITS, candidates=best, measured=sys.maxsize)
    loaded = LoadedModel.of(model)
    run = execute.recorded(loaded, recorded, limits)
    run.id, run.request = "", RunRequest(model.name, recorded.prompt, tuple(recorded.ids), len(recorded.new))
    view = RunView(run, model)
    of, dims = loaded.weights, {s.path: s.dims for s in recorded}
    for k in range(recorded.steps):
        seen = recorded.seen[run.firsts[k] : run.firsts[k + 1]]
        own = by_first_use(seen, of)
        tensors = [
            TensorView(s, *block(s.path), formula(s, dims), tuple(of[w] for w in s.weights), s.value, s.dims, first)
            for s, first in zip(seen, own, strict=True)
        ]
        view.steps.append(StepView(*run.fed(k), tensors, run.answers[k]))
    return view


def folded(view: RunView, layers: Sequence[int] = (), everything: bool = False) -> set[str]:
    """Return the blocks to fold: those whose tensors are named like an earlier block's, or with `layers` all others."""
    blocks = view.blocks()
    numbers = {b: int(m[1]) for b in blocks if (m := re.search(r"layers\.(\d+)$", b))}
    if everything:
        return set()
    if layers:
        for n in layers:
            if n not in numbers.values():
                raise UseError("explain.layer", found=n, last=max(numbers.values()))
        return {b for b in blocks if numbers[b] not in layers}
    known: set[tuple[str, tuple[str, ...]]] = set()
    hidden = set()
    for b in blocks:
        kind = b.rpartition("layers.")[0], tuple(tensor.name for tensor in view.steps[0].tensors if tensor.block == b)
        hidden |= {b} if kind in known else set()
        known.add(kind)
    return hidden
