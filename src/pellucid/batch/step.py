"""What one forward knows besides its tokens: where they stand, whose they are, and what came before.

A step flattens its requests to B = 1, T = all their rows. Every part works row by row; only an attend walks the spans:

    rows      0 1 2 3 4 | 5 | 6 7          spans   Span("a", 0, 5)  Span("b", 5, 6)  Span("c", 6, 8)
              a a a a a   b   c c          `b` decodes one token; its keys of the 40 steps before lie in pages
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.batch.kv_cache import KVCache, Paged, PagedCache, PagePool, Segment, Span, Stored
from pellucid.batch.mask import Mask
from pellucid.errors import UseError


@dataclass
class Step:
    """One forward's knowledge. positions: LongTensor [B T], -1 for padding.

    spans: empty for the B rows of a plain batch.  mask: what the caller lets queries see instead of the model's own, a prefix say.
    types: token types [B T], 0 where None.  source: the encoder's rows and the Step that made them, where a request is new.
    wanted: the rows of T whose logits are asked for.
    """

    positions: Tensor
    spans: tuple[Span, ...] = ()
    pages: PagedCache | None = None
    source: "tuple[Tensor, Step] | None" = None
    padded: bool = False
    mask: Mask | None = None
    wanted: Tensor | None = None
    types: Tensor | None = None
    kept: dict[Any, Any] = field(default_factory=dict)  # memory of this forward, when nothing outlives it
    once: dict[Any, Any] = field(default_factory=dict)  # what all layers share: angles, slots

    @staticmethod
    def plain(tokens: Tensor, padding: Tensor | None = None, mask: Mask | None = None, types: Tensor | None = None) -> "Step":
        """Positions 0, 1, 2 ... of tokens [B T]; where padding [B T] is 0 there is no token, its position is -1 and does not count."""
        if padding is None:
            return Step(torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape), mask=mask, types=types)
        real = padding.bool()
        return Step(torch.where(real, real.cumsum(-1) - 1, -1), padded=True, mask=mask, types=types)

    @staticmethod
    def packed(lengths: list[int], device: torch.device | str = "cpu", names: Sequence[object] | None = None) -> "Step":
        """Documents end to end in one row, each alone with its own positions. names: whose they are, numbers if nobody says."""
        spans, start = [], 0
        for name, n in zip(range(len(lengths)) if names is None else names, lengths, strict=True):
            spans.append(Span(name, start, start + n))
            start += n
        return Step(torch.cat([torch.arange(n, device=device) for n in lengths])[None], tuple(spans))

    @staticmethod
    def paged(pages: PagedCache, chunks: Mapping[Any, int]) -> "Step":
        """The step of a batch: {request: how many new rows}. Pages are taken here, so that a forward allocates nothing."""
        spans, at, start = [], [], 0
        for request, n in chunks.items():
            before = pages.length.get(request, 0)
            pages.reserve(request, before + n)
            spans.append(Span(request, start, start + n, before))
            at.append(torch.arange(before, before + n))
            start += n
        return Step(torch.cat(at)[None], tuple(spans), pages)

    @property
    def places(self) -> Tensor:
        """Positions that may index a table: padding reads row 0, and nobody reads padding."""
        return self.positions.clamp(min=0) if self.padded else self.positions

    def totals(self) -> Tensor:
        """How long each row's text is when the row is read, [B T] or [B 1]: with all that is read together with it, and itself."""
        if not self.spans:
            return self.positions.amax(-1, keepdim=True) + 1
        together = self.pages.together if self.pages is not None else {}
        counts = [together.get(s.request, s.end) for s in self.spans]
        sizes = torch.tensor([s.stop - s.start for s in self.spans])
        return torch.maximum(torch.tensor(counts).repeat_interleave(sizes)[None].to(self.positions.device), self.positions + 1)

    def advance(self) -> None:
        """This step's rows have been stored. Only the owner of the loop calls this: until then the same step may run again."""
        assert self.pages is not None
        for s in self.spans:
            self.pages.advance(s.request, s.end)

    def shared(self, key: object, make: Callable[[], Any]) -> Any:
        """What `make()` gives, made once a step: the layers share angles, and slots of the cache."""
        if key not in self.once:
            self.once[key] = make()
        return self.once[key]

    def store(self, part: nn.Module, *new: Tensor) -> KVCache:
        """Append this step's rows, [B T ...] each, under the part, and return a handle on all that its requests have stored."""
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

    def _append(self, group: PagePool, pools: Stored, new: Stored) -> KVCache:
        device = self.positions.device
        spans = self.spans
        slots = self.shared((group, "new"), lambda: torch.cat([group.slots(s.request, s.before, s.end) for s in spans]).to(device))
        for pool, n in zip(pools, new, strict=True):
            pool.index_copy_(0, slots, n[0])
        return KVCache([self._page(group, pools, s) for s in spans], new)

    def _page(self, group: PagePool, pools: Stored, s: Span) -> Segment:
        device, start = self.positions.device, group.first[s.request] * group.size
        held, clock = self.shared((group, s.request), lambda: (list(group.held[s.request]), group.clock))

        def slots() -> Tensor:
            at = torch.arange(s.end - start)
            return (torch.tensor(held)[at // group.size] * group.size + at % group.size).to(device)

        def read() -> Stored:
            if any(group.taken[page] > clock for page in held):  # a watcher asks late
                raise UseError("past.gone", request=s.request, end=s.end)
            at = self.shared((group, s.request, "slots"), slots)
            return tuple(p[at][None] for p in pools)

        rows, paged = slice(s.start, s.stop), Paged(pools, group.tables[s.request], group.size, s.end, start)
        return Segment(s.request, rows, self.positions[:, rows], lambda: torch.arange(start, s.end, device=device)[None], read, True, paged)

    def memory(self, part: nn.Module, make: Callable[[Tensor], Stored]) -> KVCache:
        """What `make(encoder's rows)` gives, [B S ...] each, computed once for each request and kept under the part."""
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
        return Segment(s.request, rows, self.positions[:, rows], lambda: at, lambda: stored, kept=() if padded else stored)


def spans_of(steps: tuple[Step, ...], length: str) -> tuple[Span, ...]:
    """Whose rows lie where along T; along S, the rows of an encoder: its own step comes second, or came with the source."""
    if not steps or length == "T":
        return steps[0].spans if steps else ()
    if len(steps) > 1:
        return steps[1].spans
    return steps[0].source[1].spans if steps[0].source is not None else ()


def part_of(
    steps: tuple[Step, ...], sizes: Mapping[str, int], request: object, words: list[str], rows: Tensor | None
) -> tuple[tuple[Any, ...] | None, Tensor | None]:
    """The index that cuts a request out of a tensor with the axes `words`, and its rows counted from 0.

    rows: for an axis N, the row of each.  None where nothing tells which of the tensor's rows are the request's, or none are.
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
    if start == stop or (length not in words and rows is None):  # of an axis N without rows nothing tells whose it is
        return None, None
    if "N" in words and rows is not None:
        at = ((rows >= start) & (rows < stop)).nonzero().flatten()
        return (*[slice(None)] * words.index("N"), at), rows[at] - start
    return (*[slice(None)] * words.index(length), slice(start, stop)), torch.arange(stop - start)
