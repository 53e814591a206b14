"""Decode steps as replayed plans: one new row of each of a few requests, by repeating the native calls of one forward.

A plan works as a CUDA graph does: recorded once for a number of rows n, it reads its inputs from buffers at fixed addresses.

    tokens    [1 n]     17    5  803        a plan points to these and to nothing of any request, so it serves any n of them
    positions [1 n]     40    7  511
    lengths   [1 n]         41    8  512    the length of each text, this row included
    tables    [n pages]                     each row's table of pages, copied in before each step; rows of one request have the same
    memories  [n parts 3]                   the address of each cross-attention's memory of a request

A plan is a recording of the forward, so both give the same bits, to a watch too (see replay_trace.py). Several steps may run as one burst
(see bursts.py). The forward itself runs if an op has no kernel, the step is hooked or edited, the kernels do not take the number of rows,
or there are none.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, ValuesView
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pellucid.batch.kv_cache import KVCache, PagedCache, PagedRows, ScatteredRows, Span
from pellucid.batch.page_allocator import PageAllocator
from pellucid.batch.plain_rows import Stored
from pellucid.batch.states import MatrixState, States, stateful
from pellucid.batch.step import Step
from pellucid.engine import requests
from pellucid.engine.bursts import Burst
from pellucid.engine.replay_trace import TapRecorder
from pellucid.nn.attention import CrossAttention
from pellucid.nn.transformer import Decoder, EncoderDecoder
from pellucid.ops import gpu, native
from pellucid.ops.blocks import Blocks
from pellucid.watching.tap import here, seen_by

NOTHING: Mapping[Hashable, Any] = {}


@dataclass
class DecodeStep(Step):
    """The step of one new row of each request, with its positions and tables of pages in a plan's buffers."""

    tables: Mapping[PageAllocator, Tensor] = field(default_factory=dict)
    lengths: Tensor = field(default_factory=lambda: torch.empty(1, 0, dtype=torch.long))
    memories: Tensor = field(default_factory=lambda: torch.empty(0, 0, 3, dtype=torch.long))
    cross_attention: tuple[nn.Module, ...] = ()
    kv_caches: list[tuple[KVCache, PageAllocator, Stored]] = field(default_factory=list)
    runs: Tensor | None = None  # see PagedRows

    def totals(self) -> Tensor:
        return self.lengths

    def _append(self, allocator: PageAllocator, pools: Stored, new: Stored) -> KVCache:
        tables, size = self.tables[allocator], allocator.size
        places = list(zip(self.format.places(pools), new, strict=True))
        with native.any_rows(alone=False):  # a row is copied as it is
            fits = all(native.fits_store(n, place, tables, self.positions) for place, n in places)
        if not fits:
            return super()._append(allocator, pools, new)
        for place, n in places:
            native.store(n, place, tables, self.positions, size)
        return self._rows(allocator, pools, new)

    def _rows(self, allocator: PageAllocator, pools: Stored, new: Stored) -> KVCache:
        """Return a handle on what the requests have stored, with all rows for one call."""
        rows = PagedRows(pools, self.tables[allocator], allocator.size, self.positions, self.format, self.runs)
        kv_cache = KVCache([self._page(allocator, pools, s) for s in self.spans], new, rows)
        self.kv_caches.append((kv_cache, allocator, pools))
        return kv_cache

    def states(self, part: MatrixState, like: Tensor) -> States:
        states, pages = super().states(part, like), self.pages
        assert pages is not None
        allocator = pages.of(part)
        states.batched = PagedRows((pages.states[part],), self.tables[allocator], allocator.size, self.positions)
        return states

    def set_spans(self, spans: tuple[Span, ...]) -> None:
        """Make this the step of other requests, or a later step of the same: set the segments of every KVCache that it returned."""
        self.spans, self.once = spans, {}
        for kv_cache, allocator, pools in self.kv_caches:
            kv_cache.segments[:] = [self._page(allocator, pools, s) for s in spans]

    def memory(self, part: nn.Module, make: Callable[[Tensor], Stored]) -> KVCache:
        kv_cache = super().memory(part, make)
        if part in self.cross_attention and all(p.memory for p in kv_cache.segments):
            kv_cache.batched = ScatteredRows(kv_cache.new, self.memories[:, self.cross_attention.index(part)])
        return kv_cache


class StepBuffers:
    """The input buffers of a step of n rows, and the plan that reads them.

    recorder: the taps of the plan, if a watch was open when it was recorded.
    step: the step that was recorded.
    refused: the reason why the model's step cannot be a plan, None if there is none.  burst: of the plan, for the texts that ran last.
    """

    names: tuple[str, ...] = ("tokens", "positions", "lengths")

    def __init__(self, n: int, pages: PagedCache, cross_attention: int) -> None:
        self.tokens, self.positions = torch.zeros(1, n, dtype=torch.long), torch.zeros(1, n, dtype=torch.long)
        self.lengths = torch.zeros(1, n, dtype=torch.long)
        self.tables = {g: torch.zeros(n, g.longest, dtype=torch.long) for g in pages.allocators.values()}
        self.memories = torch.zeros(n, cross_attention, 3, dtype=torch.long)
        self.plan: native.Plan | gpu.Graph | None = None
        self.recorder: TapRecorder | None = None
        self.step: DecodeStep | None = None
        self.burst: Burst | None = None
        self.refused: str | None = None
        self.logits, self.best = torch.empty(0), torch.empty(0)

    def set(self, tokens: list[int], spans: Sequence[Span], together: Mapping[object, int]) -> None:
        """Fill the buffers with a token for each span, of one row, and its request's table."""
        numbers = self.numbers
        numbers["tokens"][0] = tokens
        numbers["positions"][0] = [s.before for s in spans]
        numbers["lengths"][0] = [max(together.get(s.request, 0), s.end) for s in spans]
        for allocator in self.tables:
            for i, s in enumerate(spans):
                allocator.fill(numbers[allocator][i], s.request)

    @cached_property
    def numbers(self) -> dict[Any, np.ndarray]:
        """The input buffers' memory as numpy's, by name, and the tables' by allocator."""
        return {name: getattr(self, name).numpy() for name in self.names} | {g: t.numpy() for g, t in self.tables.items()}


class Plans:
    """A model's decode steps over one set of pages, with a plan for each number of rows.

    planned: False never records.
    best: LongTensor [n], the likeliest token after each row of the last step.
    ran: the steps of the last call.  drawn: of each row the tokens that a burst chose after its steps, but for a last one left to Python.
    interrupt: another thread writes 1 to end a burst.
    """

    def __init__(self, model: Decoder | EncoderDecoder, pages: PagedCache, planned: bool = True) -> None:
        self.model, self.pages, self.planned = model, pages, planned
        self.device, self.stateful = next(model.parameters()).device, stateful(model)
        self.most = native.ROWS if self.device.type == "cpu" else 0  # rows of a step that may be a plan
        self.buffers: dict[Any, StepBuffers] = {}  # by the number of rows
        self.best, self.ran, self.drawn, self.interrupt = torch.empty(0), 1, list[list[int]](), np.zeros(1, np.int64)
        self.dicts: list[ValuesView[Any]] = []  # of every module: its parameters, buffers and modules
        self.members: list[Any] = []  # their values at the recording; kept alive, so that no new object takes the address of an old one
        self.tensors: list[Tensor] = []
        self.cross_attention: tuple[nn.Module, ...] = ()
        self.kv_addresses: dict[Hashable, tuple[Stored, Tensor]] = {}
        self.hooks: list[dict[int, Any]] = []
        self.recorded_state: tuple[object, ...] = ()

    def step(
        self,
        feed: Mapping[Hashable, int],
        proposed: Mapping[Hashable, Sequence[int]] = NOTHING,
        ahead: Mapping[Hashable, int] = NOTHING,
        texts: Sequence[requests.Sequence] = (),
        steps: int = 1,
    ) -> Tensor:
        """Store one more token of each request. Returns the logits after it [n V], valid until the next step of n rows.

        proposed: tokens that may follow a request's. Each is computed in a row behind it, and stored, but not counted as stored.
        ahead: of a request whose own token is not to be counted either, the rows that lie behind its counted ones already.
        texts, steps: the requests' own, with pages for `steps` more tokens each. If there is a plan, up to as many steps run as a burst.
        """
        self.ran, self.drawn = 1, []
        pages, tokens, spans = self.pages, list[int](), list[Span]()
        before = {r: pages.length.get(r, 0) + ahead.get(r, 0) for r in feed}
        for request, token in feed.items():
            row = (token, *proposed.get(request, ()))
            pages.reserve(request, before[request] + len(row))
            spans += [Span(request, len(tokens) + i, len(tokens) + i + 1, before[request] + i) for i in range(len(row))]
            tokens += row
        if len(tokens) > self.most and self.device.type != "cpu":
            logits, self.best = self.batch(tokens, (*spans,))
        else:
            if planned := len(tokens) <= self.most:
                buffers = self.buffers_for(len(tokens))
            else:  # kept for no later step, whose number of rows is another
                self.drop_outdated()
                buffers = self.empty_buffers(len(tokens))
            buffers.set(tokens, spans, pages.angle_length)
            if self.cross_attention:
                torch.stack([self.memory_addresses(s.request) for s in spans], out=buffers.memories)
            if not (planned and self.plannable(buffers)):
                logits, self.best = self.plain_step(buffers, (*spans,))
            elif steps > 1 and buffers.plan is not None and not here.watches:
                logits, self.best = self.burst(buffers, texts, steps)
            else:
                logits, self.best = self.planned_step(buffers, (*spans,))
        for request in (r for r in feed if r not in ahead):
            pages.advance(request, before[request] + self.ran)
        return logits

    def ready(self, n: int) -> bool:
        """True if there is a plan for n rows."""
        return self.planned and n in self.buffers and self.buffers[n].plan is not None and native.available()

    def burst(self, buffers: StepBuffers, texts: Sequence[requests.Sequence], steps: int) -> tuple[Tensor, Tensor]:
        """Run up to `steps` steps of a plan. Sets `ran` and `drawn`, and returns the last step's logits and likeliest tokens."""
        if buffers.burst is None or not buffers.burst.serves(texts):
            buffers.burst = Burst(buffers, texts, self.interrupt)
        assert isinstance(buffers.plan, native.Plan)
        self.ran, self.drawn = buffers.burst.run(buffers.plan, texts, steps)
        return buffers.logits, buffers.best

    def plannable(self, buffers: StepBuffers) -> bool:
        """True if a plan may replace the step: no module has a hook, and every open watch can be served from a replay."""
        if not self.planned or not native.available() or buffers.refused or any(self.hooks):
            return False
        if self.stateful and here.watches:  # a replay tells of its tensors when their states have gone on
            return False
        if buffers.recorder is None:
            return isinstance(self.model, Decoder) or not here.watches
        return all(map(buffers.recorder.can_emit_to, here.watches))

    def planned_step(self, buffers: StepBuffers, spans: tuple[Span, ...]) -> tuple[Tensor, Tensor]:
        """Replay the plan, or run the step and record it; then emit the step's tensors to every open watch."""
        if buffers.plan is not None and (buffers.recorder is not None or not here.watches):
            buffers.plan.replay()
        else:
            self.record(buffers, spans)
            if not self.plannable(buffers):
                return self.plain_step(buffers, spans)
        for w in here.watches:
            assert buffers.recorder is not None and buffers.step is not None
            buffers.recorder.emit(w, buffers.step, spans, buffers.logits, buffers.tokens)
        return buffers.logits, buffers.best

    def buffers_for(self, n: Any) -> StepBuffers:
        """Return the buffers of n rows."""
        self.drop_outdated()
        if n not in self.buffers:
            self.buffers[n] = self.empty_buffers(n)
        return self.buffers[n]

    def drop_outdated(self) -> None:
        """Drop all buffers and plans if the model or the pools have changed since the recording."""
        members = list(chain.from_iterable(self.dicts))
        if self.state() != self.recorded_state or len(members) != len(self.members) or not all(map(is_, members, self.members)):
            self.buffers, modules = {}, list(self.model.modules())
            self.dicts = [d.values() for m in modules for d in (m._parameters, m._buffers, m._modules) if d]
            self.members = list(chain.from_iterable(self.dicts))
            self.tensors = [memory(t) for t in self.members if isinstance(t, Tensor)]
            self.cross_attention = tuple(m for m in modules if isinstance(m, CrossAttention))
            self.kv_addresses = {}
            self.hooks = [d for m in modules for d in (m._forward_hooks, m._forward_pre_hooks)]
            self.recorded_state = self.state()

    def empty_buffers(self, n: Any) -> StepBuffers:
        """Make the buffers of a step of n rows."""
        return StepBuffers(n, self.pages, len(self.cross_attention))

    def memory_addresses(self, request: Hashable) -> Tensor:
        """Return the address of each cross-attention's memory of a request, [parts 3]."""
        memory = self.pages.memory
        first = memory[self.cross_attention[0], request][0]
        known, rows = self.kv_addresses.get(request, (None, torch.empty(0)))
        if known is not first:
            rows = torch.tensor([native.kv_address(memory[part, request][0]) for part in self.cross_attention])
            alive = {r: w for r, w in self.kv_addresses.items() if r in self.pages.length}
            self.kv_addresses = {**alive, request: (first, rows)}
        return rows

    def state(self) -> tuple[object, ...]:
        """Return everything that a plan depends on: the model's edition, and the addresses of its weights and the pools."""
        return self.model.edition, self.pages.count, addresses(chain(self.tensors, (pool for _, pool in self.pages.stores())))

    def step_of(self, buffers: StepBuffers, spans: tuple[Span, ...]) -> DecodeStep:
        """Return the step of these spans, which reads its inputs from the buffers."""
        return DecodeStep(
            buffers.positions,
            spans,
            self.pages,
            tables=buffers.tables,
            lengths=buffers.lengths,
            memories=buffers.memories,
            cross_attention=self.cross_attention,
        )

    def plain_step(self, buffers: StepBuffers, spans: tuple[Span, ...]) -> tuple[Tensor, Tensor]:
        """Run the step without a plan."""
        return self.forward(buffers, self.step_of(buffers, spans))

    def forward(self, buffers: StepBuffers, step: DecodeStep) -> tuple[Tensor, Tensor]:
        """Run the model. Returns logits [n V], and the likeliest token of each row [n]."""
        with torch.no_grad():
            inputs = (buffers.tokens, step) if isinstance(self.model, Decoder) else (None, buffers.tokens, step)
            logits = self.model(*inputs)
        return logits[0], likeliest(logits)[0]

    def record(self, buffers: StepBuffers, spans: tuple[Span, ...]) -> None:
        """Run the step once under a recorder. Stores the plan, or the reason why it cannot be recorded.

        If a watch is open, a TapRecorder takes its place, and `planned_step` emits the recorded tensors to the watch.
        """
        recorders, step = [TapRecorder(self.model)] if here.watches else [], self.step_of(buffers, spans)
        try:
            with self.recording(buffers, spans) as recording, seen_by(*recorders):
                buffers.logits, buffers.best = self.forward(buffers, step)
        except native.Unplannable as error:
            buffers.refused = str(error)
        else:
            buffers.plan, buffers.recorder, buffers.step, buffers.burst = recording.plan(), recorders[0] if recorders else None, step, None

    def recording(self, buffers: StepBuffers, spans: tuple[Span, ...]) -> AbstractContextManager[native.Recording]:
        """Return an open recording of the step of these spans."""
        return native.record()

    def batch(self, row: list[int], spans: tuple[Span, ...]) -> tuple[Tensor, Tensor]:
        """Run the forward of a batch of any size, on any device; no plan is recorded. Returns what `forward` does."""
        positions, tokens = (torch.tensor([ids], device=self.device) for ids in ([s.before for s in spans], row))
        step = Step(positions, spans, self.pages)
        with torch.no_grad():
            logits = self.model(tokens, step) if isinstance(self.model, Decoder) else self.model(None, tokens, step)
        return logits[0], logits.argmax(-1)[0]


def likeliest(logits: Tensor) -> Tensor:
    """Return the token with the largest logit of each row, by the kernel where it runs: only its call is recorded in a plan."""
    return native.argmax(logits) if native.fits_argmax(logits) else logits.argmax(-1)


def addresses(tensors: Iterable[Tensor]) -> tuple[int, ...]:
    """Return the address of each tensor's data."""
    return tuple(map(Tensor.data_ptr, tensors))


def memory(t: Tensor) -> Tensor:
    """Return the tensor whose data a plan reads: of Blocks the codes, which are replaced only together with the scales."""
    return t.codes if isinstance(t, Blocks) else t
