"""The cells of a tensor that a change addresses, by axis letters. T and S count positions of the text, however its rows are batched.

H=3, T=-1          head 3, the prompt's last token
T=slice(4, None)   position 4 and all after it, the new tokens too
T="France"         the pieces of that word in the prompt
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pellucid.batch.kv_cache import Segment
from pellucid.batch.step import Step
from pellucid.errors import UseError
from pellucid.watching.tap import Call

if TYPE_CHECKING:
    from pellucid.watching.forward_values import ForwardValues

Index = int | slice | str | Sequence[int]
Find = Callable[[Sequence[int], str], list[int]]  # the positions of a word's pieces among a prompt's ids
ALONG = {"T": "T", "S": "S", "N": "T"}  # the axes along a text's rows, and the letter that addresses each
NOT_HERE = -1  # the position of padding, and of another text's row


@dataclass(frozen=True)
class TextRows:
    """One text's rows in a tensor. batch: its index of axis B, None for all.  positions: {axis: of each row, -1 where not of this text}.

    prompts: {letter: the ids of its prompt, None where they are unknown}.
    """

    batch: int | None
    positions: Mapping[str, Tensor]
    prompts: Mapping[str, Sequence[int] | None]


@dataclass(frozen=True)
class Place:
    """The place of a tensor in a running forward.

    call: the running part.  segment: the request whose rows it handles alone, if one.  letters: the tensor's axes.
    rows: for an axis N, the token row of each.  part: the index of the watched request's part of the tensor; () for all of it.
    step: which forward it is, from 0.  values: tensors of this forward that changes read.
    """

    path: str
    call: Call
    segment: object
    letters: list[str]
    rows: Tensor | None
    part: tuple[Any, ...]
    step: int
    values: "ForwardValues | None" = None

    @property
    def padded(self) -> bool:
        """True if one position may stand at different rows of a batch."""
        return any(step.padded for step in self.call.steps)

    def texts(self, apart: bool, addressed: Container[str]) -> Iterator[TextRows]:
        """Yield the texts of the part, or if not `apart` one TextRows for all of them, whose rows stand at the same positions.

        addressed: axes whose positions must be known; of others they may be missing.
        """
        axes = {axis: self.along(axis) for axis in self.letters if axis in ALONG and (axis in addressed or self.knows(axis))}
        if not axes or not apart:
            yield TextRows(None, {axis: at[0] for axis, (at, _) in axes.items()}, {})
            return
        batched = "B" in self.letters and any(len(at) > 1 for at, _ in axes.values())
        for n in sorted({n for _, texts in axes.values() for n in texts.unique().tolist()}):
            own = {axis: (at[min(n, len(at) - 1)], texts[min(n, len(texts) - 1)]) for axis, (at, texts) in axes.items()}
            positions = {axis: torch.where(texts == n, at, NOT_HERE) for axis, (at, texts) in own.items()}
            yield TextRows(n if batched else None, positions, {ALONG[axis]: self.prompt(axis, n) for axis in axes})

    def knows(self, axis: str) -> bool:
        """True if the positions of an axis' rows are known."""
        return bool(self.call.steps) and (axis != "N" or self.rows is not None)

    def along(self, axis: str) -> tuple[Tensor, Tensor]:
        """Return the positions of an axis' rows and the numbers of their texts, [B n] each, or [1 n] for rows without a batch."""
        if isinstance(self.segment, Segment):
            at = self.segment.k_at if axis == "S" else self.segment.q_at
            own = 0 if self.segment.request is not None else torch.arange(len(at), device=at.device)[:, None]
            return at, torch.zeros_like(at) + own
        if not self.knows(axis):
            raise UseError("change.rows", path=self.path)
        step = self.step_along(axis)
        at, texts = step.positions, torch.zeros_like(step.positions)
        texts = texts + torch.arange(len(at), device=at.device)[:, None]
        if step.spans:  # found once for all changes of a step
            texts = step.shared("texts", lambda: torch.tensor([[n for n, s in enumerate(step.spans) for _ in range(s.start, s.stop)]]))
            texts = texts.to(at.device)
        if axis == "N":
            at, texts = at.flatten()[self.rows][None], texts.flatten()[self.rows][None]
        cut = dict(zip(self.letters, self.part, strict=False))
        at, texts = (x[cut["B"]] if "B" in cut and len(x) > 1 else x for x in (at, texts))
        return (at[:, cut[axis]], texts[:, cut[axis]]) if axis in cut else (at, texts)

    def step_along(self, axis: str) -> Step:
        """Return the step whose rows stand along an axis: the encoder's for S."""
        steps = self.call.steps
        source = steps[0].source if axis == "S" else None
        return steps[1] if axis == "S" and len(steps) > 1 else steps[0] if source is None else source[1]

    def prompt(self, axis: str, n: int) -> Sequence[int] | None:
        """Return the ids of text `n`'s prompt; along S in cross attention, of its source. None if they are unknown."""
        alone = isinstance(self.segment, Segment)
        step = self.call.steps[0] if alone else self.step_along(axis)
        request = getattr(self.segment, "request", None)
        if request is None:
            request = step.spans[n].request if step.spans else n
        read: tuple[str, ...] = getattr(self.call.module, "reads_source", ())
        return step.source_prompt(request) if alone and axis == "S" and read else step.prompt(request)


def chosen_rows(index: Index, at: Tensor, prompt: Sequence[int] | None, find: Find | None, text: str) -> Tensor:
    """Return the rows whose position `index` names. A UseError if it counts from a prompt's end, or names a word, and that is unknown."""
    if isinstance(index, str):
        if find is None:
            raise UseError("change.word", change=text)
        index = find(needed(prompt, text), index)
    if isinstance(index, slice):
        start, stop = (None if end is None else from_start(end, prompt, text) for end in (index.start, index.stop))
        hit = (at >= (start or 0)) & (torch.ones_like(at, dtype=torch.bool) if stop is None else at < stop)
        return (hit & ((at - (start or 0)) % (index.step or 1) == 0)).nonzero()[:, 0]
    wanted = [from_start(i, prompt, text) for i in ([index] if isinstance(index, int) else index)]
    return ((at[:, None] == torch.tensor(wanted, device=at.device)).any(1) & (at != NOT_HERE)).nonzero()[:, 0]


def from_start(position: int, prompt: Sequence[int] | None, text: str) -> int:
    """Return a position counted from the text's start, of one that may count from the prompt's end. A UseError if it lies before."""
    if position >= 0:
        return position
    start = len(needed(prompt, text)) + position
    if start < 0:
        raise UseError("change.before", change=text, tokens=start - position)
    return start


def needed(prompt: Sequence[int] | None, text: str) -> Sequence[int]:
    """Return the prompt. A UseError if it is unknown."""
    if prompt is None:
        raise UseError("change.prompt", change=text)
    return prompt


def relative(index: Index) -> bool:
    """True if an index along a text needs the text's prompt."""
    ends = [index.start, index.stop] if isinstance(index, slice) else [index] if isinstance(index, int) else index
    return isinstance(index, str) or any(end is not None and end < 0 for end in ends if not isinstance(end, str))


def chosen_cells(index: Index, size: int, letter: str, text: str) -> Tensor:
    """Return the numbers that `index` names along an axis of `size`. A UseError if there are none such."""
    wanted = list(range(size))[index] if isinstance(index, slice) else [index] if isinstance(index, int) else index
    if isinstance(wanted, str) or not wanted or not all(-size <= i < size for i in wanted):
        raise UseError("change.index", change=text, letter=letter, size=size, last=size - 1)
    return torch.tensor([i % size for i in wanted])
