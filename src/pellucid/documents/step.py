"""The life of a prompt as lines of data: pieces, one line a tensor in the order in which it was made, the candidates, the pick.

What `explain` prints, its JSON, the page and a notebook draw from this; every number is one of a trace.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from torch import Tensor

from pellucid.api.model import Model
from pellucid.api.trace import outlined, trace
from pellucid.axes import parse, show
from pellucid.counting.weights import Weight, by_first_use, parameters, weights
from pellucid.documents.formula import block, formula
from pellucid.documents.number import finite
from pellucid.errors import UseError
from pellucid.nn.transformer import Encoder
from pellucid.runs.answers import Answer, Candidate, answer, piece_of, tokenizer_of
from pellucid.tokenizer.pieces import Piece
from pellucid.tracing import Trace
from pellucid.watching.watch import Seen

SCHEMA = 1


@dataclass(frozen=True)
class Line:
    """One tensor: where it lies, what made it from which weights, its values and what they range over.

    own: of its weights, those that no earlier tensor of its step used, so that the lines of a block sum to the block.
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
        """Its axes but the batch, with their sizes: "T 5, H 4, K 32"."""
        named = zip((show(axis) for axis in parse(self.dims)), self.value.shape, strict=True)
        return ", ".join(f"{axis} {n}" for axis, n in named if axis != "B")

    @property
    def range(self) -> tuple[float, float, float]:
        """Least, mean and greatest value; the mean is taken in float64."""
        if self.value.numel() == 0 or self.value.is_meta:
            return (float("nan"),) * 3
        low, high = (x.item() * 1 for x in (self.value.min(), self.value.max()))  # of a mask 0 and 1
        return low, float(self.value.double().mean()), high

    def of_head(self, head: int, heads: int) -> "Line":
        """The line of one query head, and of the key/value head that it reads; itself where it has no heads."""
        axes = self.dims.split()
        at = next((axes.index(a) for a in "HG" if a in axes), None)
        if at is None:
            return self
        n = self.value.shape[at]
        index = head if axes[at] == "H" else head * n // heads
        dims = " ".join(a for i, a in enumerate(axes) if i != at)
        return Line(self.seen, self.block, self.name, self.made, self.weights, self.value.select(at, index), dims, self.own)


@dataclass(frozen=True)
class StepView:
    """One step: what was fed, how many rows the past held before, its tensors, and its answers: one, or as many as there are blanks."""

    fed: list[int]
    before: int
    lines: list[Line]
    answers: list[Answer]


@dataclass
class Life:
    """A prompt's whole life in a model."""

    model: Model
    trace: Trace
    pieces: list[Piece]
    moments: list[StepView] = field(default_factory=list)

    @property
    def heads(self) -> int:
        """Query heads; all blocks have as many."""
        return self.model.config.layers[0].attn.heads

    def blocks(self) -> list[str]:
        """The blocks of the first step, in order."""
        return list(dict.fromkeys(line.block for line in self.moments[0].lines if line.block))


def live(model: Model, prompt: str | Sequence[int], steps: int = 1, best: int = 5, **how: Any) -> Life:
    """Run the prompt, watched, and tell its life; how: `watch`'s settings."""
    if steps < 1:
        raise UseError("explain.steps", found=steps)
    if best < 1:
        raise UseError("explain.top", found=best)
    if isinstance(prompt, str) and not prompt:
        raise UseError("generate.empty", name="prompt")
    if model.device.type == "meta":
        return told(model, outlined(model, prompt, steps), best)
    return told(model, trace(model, prompt, steps, **how), best)


def told(model: Model, run: Trace, best: int = 5) -> Life:
    """The life that a trace of this model recorded."""
    tokenizer = tokenizer_of(model)
    life = Life(model, run, [piece_of(tokenizer, i) for i in run.ids])
    of = {w.path: w for w in weights(model.module)}
    dims = {s.path: s.dims for s in run}
    before, feed = 0, run.ids if model.config.starts is None else [model.config.starts]
    for number, (step, seen) in enumerate(groupby(run.seen, key=lambda s: s.step)):
        made = [(s, formula(s, dims), tuple(of[w] for w in s.weights)) for s in seen]
        first = by_first_use((s for s, *_ in made), of)
        lines = [Line(s, *block(s.path), text, used, s.value, s.dims, own) for (s, text, used), own in zip(made, first, strict=True)]
        rows = model.blanks(run.ids) if isinstance(model.module, Encoder) else [-1]
        rows = [] if model.device.type == "meta" else rows
        picks = run.new if isinstance(model.module, Encoder) else run.new[number : number + 1]
        answers = [answer(tokenizer, run.last_logits(step, row), row, pick, best) for row, pick in zip(rows, picks, strict=True)]
        life.moments.append(StepView(feed, before, lines, answers))
        before, feed = before + len(feed), picks
    return life


def folded(life: Life, layers: Sequence[int] = (), everything: bool = False) -> set[str]:
    """The blocks that one line stands for: those whose lines are named like an earlier block's, unless asked for by number."""
    blocks = life.blocks()
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
        kind = b.rpartition("layers.")[0], tuple(line.name for line in life.moments[0].lines if line.block == b)
        hidden |= {b} if kind in known else set()
        known.add(kind)
    return hidden


def held(model: Model, path: str) -> int:
    """The parameters of a block. A table that layers share belongs to the first of them."""
    return parameters(w for w in weights(model.module) if block(w.path)[0] == path)


def document(life: Life) -> dict[str, Any]:
    """The life as JSON; numbers that JSON lacks are null."""
    first = written_answer(life.moments[0].answers)
    blanks = life.moments[0].answers if isinstance(life.model.module, Encoder) else []
    return {
        "schema": SCHEMA,
        "model": life.model.name,
        "family": life.model.family.name,
        "parameters": life.model.num_parameters(),
        "dtype": str(life.model.dtype).removeprefix("torch."),
        "prompt": life.trace.prompt,
        "tokens": [{"id": p.id, "text": p.text, "bytes": p.raw.hex()} for p in life.pieces],
        "blocks": [{"path": path, "parameters": held(life.model, path)} for path in life.blocks()],
        "tensors": [tensor(line) for m in life.moments for line in m.lines],
        **first,
        "new": life.trace.new,
        "steps": [{"fed": m.fed, "past": m.before, **written_answer(m.answers)} for m in life.moments],
        **({"blanks": [{"row": a.row, **written_answer([a])} for a in blanks]} if blanks else {}),
    }


def written_answer(answers: Sequence[Answer]) -> dict[str, Any]:
    """The first answer as JSON; null where a model has none."""
    if not answers:
        return {"next": None, "candidates": []}
    return {"next": written(answers[0].pick, logit=False), "candidates": [written(c) for c in answers[0].candidates]}


def tensor(line: Line) -> dict[str, Any]:
    """One tensor's line as JSON."""
    s = line.seen
    low, mean, high = map(finite, line.range)
    told: dict[str, Any] = {"path": s.path, "dims": s.dims, "shape": list(s.shape), "dtype": str(s.dtype).removeprefix("torch.")}
    told |= {"min": low, "mean": mean, "max": high, "step": s.step, "made": line.made, "op": s.op}
    told |= {"inputs": list(s.inputs), "weights": list(s.weights), "parameters": parameters(line.own), "settings": dict(s.settings)}
    return told | {"source": s.source, "error": finite(s.error)}


def written(c: Candidate, logit: bool = True) -> dict[str, Any]:
    """A candidate as JSON."""
    told: dict[str, Any] = {"id": c.id, "text": c.text}
    return told | ({"logit": finite(c.logit)} if logit else {}) | {"probability": finite(c.probability)}
