"""Decode steps on a GPU as CUDA graphs: the plans of `plans.py`, recorded and replayed by the card.

A graph reads its tokens, positions and tables of pages from buffers on the card, which are filled from the host before each step. In a
burst the card fills them itself from the tokens that it has just chosen:

    host    fill, launch, read | Python | fill, launch, read | Python ...
    burst   fill, launch, next, launch, next, launch, read   | Python          next: tokens = best, positions + 1

Greedy texts alone run in bursts. The rows of a burst behind the end of a text are computed in vain, and the next step writes over them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pellucid.batch.kv_cache import KVCache, PagedCache, Segment, Span
from pellucid.batch.page_allocator import PageAllocator
from pellucid.batch.plain_rows import Stored
from pellucid.engine import requests
from pellucid.engine.plans import DecodeStep, Plans, StepBuffers
from pellucid.nn.transformer import Decoder, EncoderDecoder
from pellucid.ops import gpu, native
from pellucid.watching.tap import here, seen_by

INPUTS = "tokens", "positions", "lengths"
STEPS = 8  # of one burst, which no other thread can end
ROWS = 64  # of a step that may be a graph: one is recorded for each number of rows
DEVICES = ["cuda"]  # that have graphs; a test adds another


class Segments(list[Segment]):
    """The segments of a step, one a request. A graph cannot walk them: it would keep the lengths that they have now."""

    def __iter__(self) -> Any:
        if gpu.capturing():
            raise native.Unplannable("plan.segments")
        return super().__iter__()

    def __getitem__(self, i: Any) -> Any:
        if gpu.capturing():
            raise native.Unplannable("plan.segments")
        return super().__getitem__(i)


class GraphStep(DecodeStep):
    """The step of one new row of each request, which stores and attends without a number of the host."""

    def _append(self, allocator: PageAllocator, pools: Stored, new: Stored) -> KVCache:
        tables, size = self.tables[allocator], allocator.size
        if gpu.fits_store(new, pools, tables):
            gpu.store(new, pools, tables, self.positions, size)
        else:
            at = self.positions[0]
            slots = tables.gather(1, (at // size)[:, None])[:, 0] * size + at % size
            self.format.write(pools, slots, new)
        kv_cache = self._rows(allocator, pools, new)
        kv_cache.segments = Segments(kv_cache.segments)
        return kv_cache


class GraphBuffers(StepBuffers):
    """The input buffers of a step on the card, and those of the host that they are filled from.

    chosen: the likeliest token of each step of a burst.  largest: its logit.  at: the step of a burst.  next: fills the inputs of the next.
    """

    def __init__(self, n: int, pages: PagedCache) -> None:
        super().__init__(n, pages, 0)
        self.host = StepBuffers(n, pages, 0)
        if pages.device.type == "cuda":
            for name in INPUTS:
                setattr(self.host, name, getattr(self.host, name).pin_memory())
            self.host.tables = {g: t.pin_memory() for g, t in self.host.tables.items()}
        for name in INPUTS:
            setattr(self, name, getattr(self, name).to(pages.device))
        self.tables = {g: t.to(pages.device) for g, t in self.tables.items()}
        self.chosen = torch.zeros(STEPS, n, dtype=torch.long, device=pages.device)
        self.largest = torch.zeros(STEPS, n, dtype=torch.float32, device=pages.device)
        self.at = torch.zeros(1, dtype=torch.long, device=pages.device)
        self.next: gpu.Graph | None = None

    def set(self, tokens: list[int], spans: Sequence[Span], together: Mapping[object, int]) -> None:
        self.host.set(tokens, spans, together)
        for name in INPUTS:
            getattr(self, name).copy_(getattr(self.host, name), non_blocking=True)
        for g, own in self.tables.items():
            own.copy_(self.host.tables[g], non_blocking=True)

    def advance(self) -> None:
        """Note the tokens that the step has chosen, and make them the inputs of the next."""
        self.chosen.index_copy_(0, self.at, self.best[None])
        self.largest.index_copy_(0, self.at, self.logits.gather(1, self.best[:, None])[:, 0][None].float())
        self.at.add_(1)
        self.tokens.copy_(self.best[None])
        self.positions.add_(1)
        torch.maximum(self.lengths, self.positions + 1, out=self.lengths)


class Graphs(Plans):
    """A model's decode steps on a GPU, with a graph for each number of rows."""

    def __init__(self, model: Decoder | EncoderDecoder, pages: PagedCache) -> None:
        super().__init__(model, pages)
        self.most = ROWS

    def empty_buffers(self, n: int) -> GraphBuffers:
        return GraphBuffers(n, self.pages)

    def buffers_for(self, n: int) -> StepBuffers:
        buffers = super().buffers_for(n)
        self.cross_attention = ()  # a graph has no addresses of memories
        return buffers

    def ready(self, n: int) -> bool:
        return n in self.buffers and self.buffers[n].plan is not None

    def plannable(self, buffers: StepBuffers) -> bool:
        if buffers.refused or any(self.hooks) or self.stateful or not isinstance(self.model, Decoder):
            return False
        if buffers.recorder is None:
            return True
        return all(map(buffers.recorder.can_emit_to, here.watches))

    def step_of(self, buffers: StepBuffers, spans: tuple[Span, ...]) -> DecodeStep:
        return GraphStep(buffers.positions, spans, self.pages, tables=buffers.tables, lengths=buffers.lengths)

    def plain_step(self, buffers: StepBuffers, spans: tuple[Span, ...]) -> tuple[Tensor, Tensor]:
        assert isinstance(buffers, GraphBuffers)
        return self.batch(buffers.host.tokens[0].tolist(), spans)

    def record(self, buffers: StepBuffers, spans: tuple[Span, ...]) -> None:
        assert isinstance(buffers, GraphBuffers)
        super().record(buffers, spans)
        buffers.next = None  # it reads the outputs of the plan before
        if buffers.plan is not None:
            buffers.plan.replay()

    def recording(self, buffers: StepBuffers, spans: tuple[Span, ...]) -> Any:
        return gpu.record(lambda: self.unseen(buffers, spans))

    def unseen(self, buffers: StepBuffers, spans: tuple[Span, ...]) -> None:
        """Run the step once, unseen by any watch."""
        with seen_by():
            self.forward(buffers, self.step_of(buffers, spans))

    def burst(self, buffers: StepBuffers, texts: Sequence[requests.Sequence], steps: int) -> tuple[Tensor, Tensor]:
        """Run up to `steps` steps, each with the tokens that the one before has chosen, if every text is greedy."""
        assert isinstance(buffers, GraphBuffers) and buffers.plan is not None
        steps = min(steps, STEPS) if all(s.request.sampling.plain for s in texts) else 1
        if steps == 1:
            buffers.plan.replay()
            return buffers.logits, buffers.best
        if buffers.next is None:
            buffers.next = gpu.record_also(buffers.advance)
        buffers.at.zero_()
        for _ in range(steps):
            buffers.plan.replay()
            buffers.next.replay()
        chosen, finite = buffers.chosen[:steps].tolist(), buffers.largest[:steps].isfinite().all(1).tolist()
        ends = [
            not sound or any(id in s.request.stops for s, id in zip(texts, row, strict=True))
            for row, sound in zip(chosen, finite, strict=True)
        ]
        sure = ends.index(True) if True in ends else steps  # the choices that end no text
        self.ran, self.drawn = min(sure + 1, steps), [list(ids) for ids in zip(*chosen[:sure], strict=True)]
        return buffers.logits, buffers.chosen[self.ran - 1]


def plans_for(model: Decoder | EncoderDecoder, pages: PagedCache) -> Plans:
    """Return the plans of a model: graphs on a GPU, native calls elsewhere."""
    return Graphs(model, pages) if pages.device.type in DEVICES else Plans(model, pages)
