"""A crowd's decode step: one new row of each of a few requests, by replaying what the ordinary forward did for as many before.

    tokens    [1 n]     17    5  803        a plan for n rows points to this place and to nothing of any request, so it serves any n
    positions [1 n]     40    7  511        of them: their tables of pages are copied in before each step, where they hold pages
    lengths   [1 n]         41    8  512    how long each text is with this row
    tables    [n pages]                     and so does where each cross attention's memory of a request lies: memories [n parts 3]

A plan is only ever a recording of the forward, so both give the same bits, to a watcher too (see echo). A model that does something no
kernel does, a hooked or edited step, more rows than the kernels take, or a machine without kernels runs the forward itself.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, ValuesView
from dataclasses import dataclass, field
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.batch.kv_cache import KVCache, PagedCache, PagedRows, PagePool, ScatteredRows, Span, Stored
from pellucid.batch.step import Step
from pellucid.engine.replay_trace import TapRecorder
from pellucid.nn.attention import CrossAttention
from pellucid.nn.transformer import Decoder, EncoderDecoder
from pellucid.ops import native
from pellucid.ops.blocks import Blocks
from pellucid.watching.tap import here, seen_by


@dataclass
class Rows(Step):
    """The step of one new row of each request, whose positions and tables of pages a plan may point to."""

    tables: Mapping[PagePool, Tensor] = field(default_factory=dict)
    lengths: Tensor = field(default_factory=lambda: torch.empty(1, 0, dtype=torch.long))
    memories: Tensor = field(default_factory=lambda: torch.empty(0, 0, 3, dtype=torch.long))
    cross_attention: tuple[nn.Module, ...] = ()
    kv_caches: list[tuple[KVCache, PagePool, Stored]] = field(default_factory=list)

    def totals(self) -> Tensor:
        return self.lengths

    def _append(self, group: PagePool, pools: Stored, new: Stored) -> KVCache:
        tables, size = self.tables[group], group.size
        if not all(native.fits_store(n, pool, tables, self.positions) for pool, n in zip(pools, new, strict=True)):
            return super()._append(group, pools, new)
        for pool, n in zip(pools, new, strict=True):
            native.store(n, pool, tables, self.positions, size)
        kv_cache = KVCache([self._page(group, pools, s) for s in self.spans], new, PagedRows(pools, tables, size, self.positions))
        self.kv_caches.append((kv_cache, group, pools))
        return kv_cache

    def now(self, spans: tuple[Span, ...]) -> None:
        """The step of other requests, or a later one of these: the caches that it has given out are theirs."""
        self.spans, self.once = spans, {}
        for kv_cache, group, pools in self.kv_caches:
            kv_cache.segments[:] = [self._page(group, pools, s) for s in spans]

    def memory(self, part: nn.Module, make: Callable[[Tensor], Stored]) -> KVCache:
        kv_cache = super().memory(part, make)
        if part in self.cross_attention and all(p.kept for p in kv_cache.segments):
            kv_cache.batched = ScatteredRows(kv_cache.new, self.memories[:, self.cross_attention.index(part)])
        return kv_cache


class Place:
    """Where a step of n rows reads what changes from step to step, and what was recorded there."""

    def __init__(self, n: int, pages: PagedCache, cross_attention: int) -> None:
        self.tokens, self.positions = torch.zeros(1, n, dtype=torch.long), torch.zeros(1, n, dtype=torch.long)
        self.lengths = torch.zeros(1, n, dtype=torch.long)
        self.tables = {g: torch.zeros(n, g.longest, dtype=torch.long) for g in pages.groups.values()}
        self.memories = torch.zeros(n, cross_attention, 3, dtype=torch.long)
        self.plan: native.Plan | None = None
        self.scribe: TapRecorder | None = None  # of a plan that was recorded while somebody watched
        self.step: Rows | None = None  # the step that was recorded
        self.refused: str | None = None  # why the model's step is no plan
        self.logits, self.best = torch.empty(0), torch.empty(0)

    def set(self, feed: Mapping[Hashable, int], positions: list[int], together: Mapping[object, int]) -> None:
        """One row a token. Of each table as much as the longest of the requests has filled."""
        self.tokens.numpy()[0] = list(feed.values())  # numpy writes a few numbers in a sixth of torch's time
        self.positions.numpy()[0] = positions
        self.lengths.numpy()[0] = [max(together.get(r, 0), at + 1) for r, at in zip(feed, positions, strict=True)]
        for group, tables in self.tables.items():
            filled, rows = max(positions) // group.size + 1, tables.numpy()
            for i, request in enumerate(feed):
                rows[i, :filled] = group.tables[request].numpy()[:filled]


class Plans:
    """A model's decode steps over the requests of one set of pages. It keeps a plan for each number of rows, whoever they are.

    planned: False never records.  best: LongTensor [n], the likeliest token after each row of the last step.
    """

    def __init__(self, model: Decoder | EncoderDecoder, pages: PagedCache, planned: bool = True) -> None:
        self.model, self.pages, self.planned = model, pages, planned
        self.device = next(model.parameters()).device
        self.places: dict[int, Place] = {}
        self.best = torch.empty(0)
        self.holders: list[ValuesView[Any]] = []
        self.held: list[Any] = []  # kept, so that nothing new comes to lie where one of them was
        self.tensors: list[Tensor] = []
        self.cross_attention: tuple[nn.Module, ...] = ()
        self.kv_address: dict[Hashable, tuple[Stored, Tensor]] = {}
        self.hooks: list[dict[int, Any]] = []
        self.made_of: tuple[object, ...] = ()

    def step(self, feed: Mapping[Hashable, int]) -> Tensor:
        """Store one more token of each request; logits [n V] of what follows, valid until the next step of as many."""
        pages, n = self.pages, len(feed)
        before = [pages.length.get(r, 0) for r in feed]
        for request, at in zip(feed, before, strict=True):
            pages.reserve(request, at + 1)
        if n > native.ROWS or self.device.type != "cpu":
            return self.crowd(feed)
        place = self.place(n)
        place.set(feed, before, pages.together)
        if self.cross_attention:
            torch.stack([self.memory_places(r) for r in feed], out=place.memories)
        spans = tuple(Span(r, i, i + 1, before[i]) for i, r in enumerate(feed))
        logits, self.best = self.planned_step(place, spans) if self.plannable(place) else self.forward(place, self.rows(place, spans))
        for s in spans:
            pages.advance(s.request, s.end)
        return logits

    def plannable(self, place: Place) -> bool:
        """Whether a plan may stand for the step: nobody hooks it, and whoever watches can be told afterwards what it did."""
        if not self.planned or not native.available() or place.refused or any(self.hooks):
            return False
        if place.scribe is None:
            return isinstance(self.model, Decoder) or not here.watches
        return all(map(place.scribe.serves, here.watches))

    def planned_step(self, place: Place, spans: tuple[Span, ...]) -> tuple[Tensor, Tensor]:
        """Replay the plan, or record it; where somebody watches, tell him."""
        if place.plan is not None and (place.scribe is not None or not here.watches):
            place.plan.replay()
        else:
            self.record(place, spans)
            if not self.plannable(place):
                return self.forward(place, self.rows(place, spans))
        for w in here.watches:
            assert place.scribe is not None and place.step is not None
            place.scribe.tell(w, place.step, spans, place.logits, place.tokens)
        return place.logits, place.best

    def place(self, n: int) -> Place:
        """The place of n rows. All places fall when the model or the pools are no longer what plans were recorded from."""
        held = list(chain.from_iterable(self.holders))
        if self.state() != self.made_of or len(held) != len(self.held) or not all(map(is_, held, self.held)):
            self.places, kept = {}, list(self.model.modules())
            self.holders = [d.values() for m in kept for d in (m._parameters, m._buffers, m._modules) if d]
            self.held = list(chain.from_iterable(self.holders))
            self.tensors = [memory(t) for t in self.held if isinstance(t, Tensor)]
            self.cross_attention = tuple(m for m in kept if isinstance(m, CrossAttention))
            self.kv_address = {}
            self.hooks = [d for m in kept for d in (m._forward_hooks, m._forward_pre_hooks)]
            self.made_of = self.state()
        if n not in self.places:
            self.places[n] = Place(n, self.pages, len(self.cross_attention))
        return self.places[n]

    def memory_places(self, request: Hashable) -> Tensor:
        """Where each cross attention's memory of a request lies, [parts 3]."""
        memory = self.pages.memory
        first = memory[self.cross_attention[0], request][0]
        known, found = self.kv_address.get(request, (None, torch.empty(0)))
        if known is not first:
            found = torch.tensor([native.kv_address(memory[part, request][0]) for part in self.cross_attention])
            alive = {r: w for r, w in self.kv_address.items() if r in self.pages.tables}
            self.kv_address = {**alive, request: (first, found)}
        return found

    def state(self) -> tuple[object, ...]:
        """The model's edition, and where its weights and the pools lie: a plan points there. Its parts are compared one by one."""
        return self.model.edition, self.pages.count, addresses(chain(self.tensors, *self.pages.pools.values()))

    def rows(self, place: Place, spans: tuple[Span, ...]) -> Rows:
        """The step of these spans, which reads what changes from the place."""
        return Rows(
            place.positions,
            spans,
            self.pages,
            tables=place.tables,
            lengths=place.lengths,
            memories=place.memories,
            cross_attention=self.cross_attention,
        )

    def forward(self, place: Place, step: Rows) -> tuple[Tensor, Tensor]:
        """The model's own step: logits [n V], and the likeliest [n]."""
        with torch.no_grad():
            told = (place.tokens, step) if isinstance(self.model, Decoder) else (None, place.tokens, step)
            logits = self.model(*told)
            best = native.argmax(logits) if native.fits_argmax(logits) else logits.argmax(-1)
        return logits[0], best[0]

    def record(self, place: Place, spans: tuple[Span, ...]) -> None:
        """Run the step once under a recorder. Keep the plan, or the reason why it cannot be recorded. A recorder stands for the watches."""
        scribes, step = [TapRecorder(self.model)] if here.watches else [], self.rows(place, spans)
        try:
            with native.record() as recording, seen_by(*scribes):
                place.logits, place.best = self.forward(place, step)
        except native.Unplannable as error:
            place.refused = str(error)
        else:
            place.plan, place.scribe, place.step = recording.plan(), scribes[0] if scribes else None, step

    def crowd(self, feed: Mapping[Hashable, int]) -> Tensor:
        """The forward of any crowd, on any device."""
        step, tokens = Step.paged(self.pages, dict.fromkeys(feed, 1)), torch.tensor([list(feed.values())], device=self.device)
        with torch.no_grad():
            logits = self.model(tokens, step) if isinstance(self.model, Decoder) else self.model(None, tokens, step)
            self.best = logits.argmax(-1)[0]
        step.advance()
        return logits[0]  # type: ignore[no-any-return]


def addresses(tensors: Iterable[Tensor]) -> tuple[int, ...]:
    """Where they lie."""
    return tuple(map(Tensor.data_ptr, tensors))


def memory(t: Tensor) -> Tensor:
    """Where a parameter's numbers lie: blocks are two tensors, which come and go together."""
    return t.codes if isinstance(t, Blocks) else t
