"""The input of a forward besides its tokens: their positions, their requests, and the KV cache.

A step flattens its requests to B = 1, T = all their rows. Every part works row by row; only an attend walks the spans:

    rows      0 1 2 3 4 | 5 | 6 7          spans   Span("a", 0, 5)  Span("b", 5, 6)  Span("c", 6, 8)
              a a a a a   b   c c          `b` decodes one token; its keys of the 40 steps before lie in pages
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn

from pellucid.batch.kv_cache import KVCache, Paged, PagedCache, PagedRows, Segment, Span
from pellucid.batch.mask import Mask
from pellucid.batch.page_allocator import PageAllocator
from pellucid.batch.plain_rows import PLAIN, PlainRows, Stored
from pellucid.batch.states import MatrixState, States, TextStates
from pellucid.errors import UseError


@dataclass
class Step:
    """The state of one forward. positions: LongTensor [B T], -1 for padding.

    spans: the rows of each request; empty for a plain batch.  pages: the KV cache that it stores to; None keeps nothing.
    source: the encoder's rows and the Step that made them, where a request is new.  mask: replaces the layers' own, for a prefix say.
    wanted: the rows of T whose logits are returned; None: all.  types: token types [B T]; None: all 0.
    task: the 0s [B T] that are the task types of all tokens, which a recorded plan cannot make; None: made.
    entry: the first block that runs, and the rows [B T D] that enter it; None: all blocks, from the embedding's rows.
    prompts: the ids of each request's prompt, or of a plain batch's rows [B T], for changes that count from a prompt's end.
    ids, entered: the step's tokens [B T] and the rows [B T D] that enter the first block, for blocks that read them too.
    last: the model's last rows [B T D], which modules behind it read; kept where it has any.
    """

    positions: Tensor
    spans: tuple[Span, ...] = ()
    pages: PagedCache | None = None
    source: "tuple[Tensor, Step] | None" = None
    padded: bool = False
    mask: Mask | None = None
    wanted: Tensor | None = None
    types: Tensor | None = None
    task: Tensor | None = None
    entry: tuple[int, Tensor] | None = None
    prompts: Tensor | Mapping[Any, Sequence[int]] | None = None
    ids: Tensor | None = None
    entered: Tensor | None = None
    last: Tensor | None = None
    kept: dict[Any, Any] = field(default_factory=dict)  # cross attention's memory, where no pages keep it
    once: dict[Any, Any] = field(default_factory=dict)  # what all layers share: angles, the slots of new rows

    @staticmethod
    def plain(tokens: Tensor, padding: Tensor | None = None, mask: Mask | None = None, types: Tensor | None = None) -> "Step":
        """Make the step of tokens [B T] at positions 0, 1, 2 ... Tokens whose padding [B T] is 0 get -1, and are not counted."""
        if padding is None:
            return Step(torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape), mask=mask, types=types, prompts=tokens)
        real = padding.bool()
        return Step(torch.where(real, real.cumsum(-1) - 1, -1), padded=True, mask=mask, types=types, prompts=tokens)

    @staticmethod
    def packed(lengths: list[int], device: torch.device | str = "cpu", prompts: Mapping[Any, Sequence[int]] | None = None) -> "Step":
        """Make the step of documents end to end in one row, each with its own positions. prompts: ids by request; 0, 1, 2 ... if None."""
        spans, start = [], 0
        for name, n in zip(range(len(lengths)) if prompts is None else prompts, lengths, strict=True):
            spans.append(Span(name, start, start + n))
            start += n
        return Step(torch.cat([torch.arange(n, device=device) for n in lengths])[None], tuple(spans), prompts=prompts)

    @classmethod
    def paged(cls, pages: PagedCache, chunks: Mapping[Any, int]) -> Self:
        """Make the step of a flat batch, {request: number of new rows}. Reserves their pages, so that a forward allocates nothing."""
        spans, at = list[Span](), list[int]()
        for request, n in chunks.items():
            before = pages.length.get(request, 0)
            pages.reserve(request, before + n)
            spans.append(Span(request, len(at), len(at) + n, before))
            at += range(before, before + n)
        return cls(torch.tensor([at], dtype=torch.long).to(pages.device), tuple(spans), pages)

    def prompt(self, request: Any) -> Sequence[int] | None:
        """Return the ids of a request's prompt, or of a row of a plain batch. None if they are unknown."""
        if self.pages is not None:
            return self.pages.prompts.get(request, (None, None))[0]
        if not isinstance(self.prompts, Tensor):
            return None if self.prompts is None else self.prompts.get(request)
        row = 0 if request is None else request
        return self.prompts[row][self.positions[row] >= 0].tolist()

    def source_prompt(self, request: Any) -> Sequence[int] | None:
        """Return the ids of a request's source. None if they are unknown, or it has none."""
        if self.pages is not None:
            return self.pages.prompts.get(request, (None, None))[1]
        return None if self.source is None else self.source[1].prompt(request)

    @property
    def position_ids(self) -> Tensor:
        """Return positions that may index a table: padding reads row 0, and its result is never read."""
        return self.positions.clamp(min=0) if self.padded else self.positions

    def wanted_rows(self) -> Tensor:
        """Return the rows of T whose logits are returned."""
        return torch.arange(self.positions.shape[1], device=self.positions.device) if self.wanted is None else self.wanted

    def totals(self) -> Tensor:
        """Return the length of each row's text when the row is read, [B T] or [B 1]: at least up to the row itself."""
        if not self.spans:
            return self.positions.amax(-1, keepdim=True) + 1
        together = self.pages.angle_length if self.pages is not None else {}
        lengths = [together.get(s.request, s.end) for s in self.spans for _ in range(s.start, s.stop)]
        return torch.maximum(torch.tensor([lengths]).to(self.positions.device), self.positions + 1)

    def advance(self, steps: int = 1) -> None:
        """Count this step's rows as stored, and those of a burst's later steps. Only the owner of the loop calls this: until then the
        same step may run again.
        """
        assert self.pages is not None
        for s in self.spans:
            self.pages.advance(s.request, s.end + steps - 1)

    def shared(self, key: object, make: Callable[[], Any]) -> Any:
        """Return `make()`, called once a step under `key`, so that all layers share its value."""
        if key not in self.once:
            self.once[key] = make()
        return self.once[key]

    def store(self, part: nn.Module, *new: Tensor) -> KVCache:
        """Append this step's rows, [B T ...] each, to the part's cache. Returns a handle on all that its requests have stored."""
        if self.pages is not None:
            return self._append(self.pages.of(part), self.pages.pool(part, new), new)
        at = self.positions
        if not self.spans:
            return KVCache([Segment(None, slice(None), at, lambda: at, lambda: new, not self.padded)], new)
        return KVCache([self._document(s, new) for s in self.spans], new)

    def _document(self, s: Span, new: Stored) -> Segment:
        rows = slice(s.start, s.stop)
        at = self.positions[:, rows]
        return Segment(s.request, rows, at, lambda: at, lambda: tuple(n[:, rows] for n in new), True)

    @property
    def format(self) -> PlainRows:
        """How the step's pages hold rows."""
        return PLAIN if self.pages is None else self.pages.format

    def _append(self, allocator: PageAllocator, pools: Stored, new: Stored) -> KVCache:
        device = self.positions.device
        spans = self.spans
        slots = self.shared((allocator, "new"), lambda: torch.cat([allocator.slots(s.request, s.before, s.end) for s in spans]).to(device))
        self.format.write(pools, slots, new)
        return KVCache([self._page(allocator, pools, s) for s in spans], new)

    def _page(self, allocator: PageAllocator, pools: Stored, s: Span) -> Segment:
        device, start = self.positions.device, allocator.first[s.request] * allocator.size
        once, format = self.once, self.format  # not self, which may hold the segment: a circle would keep the weights
        key = allocator, s.request, s.end, "slots"
        numbers, clock = self.shared((allocator, s.request), lambda: (list(allocator.allocated[s.request]), allocator.clock))

        def slots() -> Tensor:
            at = torch.arange(s.end - start)
            return (torch.tensor(numbers)[at // allocator.size] * allocator.size + at % allocator.size).to(device)

        def read() -> Stored:
            if any(allocator.allocated_at[page] > clock for page in numbers):  # a watch reads late
                raise UseError("past.gone", request=s.request, end=s.end)
            if key not in once:
                once[key] = slots()
            return tuple(rows[None] for rows in format.read(pools, once[key]))

        rows, paged = slice(s.start, s.stop), Paged(pools, allocator.tables[s.request], allocator.size, s.end, start, format)
        return Segment(s.request, rows, self.positions[:, rows], lambda: torch.arange(start, s.end, device=device)[None], read, True, paged)

    def states(self, part: MatrixState, like: Tensor) -> States:
        """Return a handle on the states of a part before this step's rows, in the dtype of `like`."""
        if self.pages is None:
            if not self.spans:
                return States([TextStates(slice(None), self.positions, self.padded)])
            rows = [(s.request, slice(s.start, s.stop)) for s in self.spans]
            return States([TextStates(own, self.positions[:, own], request=request) for request, own in rows])
        pool, allocator = self.pages.state_pool(part, part.shape, like), self.pages.of(part)
        return States([self._state(pool, allocator, s) for s in self.spans])

    def _state(self, pool: Tensor, allocator: PageAllocator, s: Span) -> TextStates:
        rows = slice(s.start, s.stop)
        at = self.positions[:, rows]
        return TextStates(rows, at, False, PagedRows((pool,), allocator.tables[s.request], allocator.size, at), s.request)

    def memory(self, part: nn.Module, make: Callable[[Tensor], Stored]) -> KVCache:
        """Return cross attention's keys and values, `make(encoder rows)`, [B S ...] each: made once for each request and kept."""
        kept = self.kept if self.pages is None else self.pages.memory
        if self.source is not None:
            rows, step = self.source
            spans = step.spans or (Span(None, 0, rows.shape[1]),)
            if self.pages is None or any((part, s.request) not in kept for s in spans):
                made = make(rows)
                for s in spans:
                    kept[part, s.request] = tuple(m[:, s.start : s.stop] for m in made), step.positions[:, s.start : s.stop], step.padded
        own = self.spans or (Span(None, 0, self.positions.shape[1]),)
        return KVCache([self._remembered(s, *kept[part, s.request]) for s in own], kept[part, own[0].request][0])

    def _remembered(self, s: Span, stored: Stored, at: Tensor, padded: bool) -> Segment:
        rows = slice(s.start, s.stop)
        return Segment(s.request, rows, self.positions[:, rows], lambda: at, lambda: stored, memory=() if padded else stored)


def spans_of(steps: tuple[Step, ...], length: str) -> tuple[Span, ...]:
    """Return the spans along `length`: T, or S for an encoder's rows, whose step is the second one or came with the source."""
    if not steps or length == "T":
        return steps[0].spans if steps else ()
    if len(steps) > 1:
        return steps[1].spans
    return steps[0].source[1].spans if steps[0].source is not None else ()


def part_of(
    steps: tuple[Step, ...], sizes: Mapping[str, int], request: object, words: list[str], rows: Tensor | None
) -> tuple[tuple[Any, ...] | None, Tensor | None]:
    """Return the index that cuts a request out of a tensor with the axes `words`, and the rows of the request counted from 0.

    rows: for an axis N, the row of each.  None if the request has none of the tensor's rows, or its rows are unknown.
    """
    length = "T" if "T" in words or "S" not in words else "S"
    spans = spans_of(steps, length)
    if spans:
        start, stop = next(((s.start, s.stop) for s in spans if s.request == request), (0, 0))
    elif isinstance(request, int) and 0 <= request < sizes["B"]:
        if "B" in words:
            return (*[slice(None)] * words.index("B"), slice(request, request + 1)), None
        start, stop = request * sizes["T"], (request + 1) * sizes["T"]
    else:
        return None, None
    if start == stop or (length not in words and rows is None):  # nothing says to which request an N without rows belongs
        return None, None
    if "N" in words and rows is not None:
        at = ((rows >= start) & (rows < stop)).nonzero().flatten()
        return (*[slice(None)] * words.index("N"), at), rows[at] - start
    return (*[slice(None)] * words.index(length), slice(start, stop)), torch.arange(stop - start)
