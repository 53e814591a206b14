"""Steps with rows of prompts, and of many texts, as replayed plans of up to 16 or 512 rows, which run for any smaller number; of 64 too
where weights are in blocks, whose many rows have a kernel of their own.

    tokens     [1 n]    17   5 | 803  91   4 ...  60      two texts decode, and 25 rows of a prompt
    positions  [1 n]    40   7 |   0   1   2 ...  24
    runs                3 |  0   1   2  27                the number of texts, where their rows begin, the last one's end
    wanted     [w]      0   1  26                         the rows whose logits are returned

While every text decodes, several steps may run as one burst (see bursts.py).

A plan is recorded for its largest number of rows, and nothing runs meanwhile. It holds the memory of a few layers, not of all: a tensor
that nothing reads any more gives its place to a later one. All plans share this memory and their input buffers, since one step runs at a
time; memory of rows that never run is never touched.

Only a step that is all kernels can be one. Those that leave prompts to torch, which multiplies faster there, run module by module.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from copy import copy
from typing import Any

import torch
from torch import Tensor

from pellucid.batch.kv_cache import PagedCache, Span
from pellucid.batch.states import stateful
from pellucid.batch.step import Step
from pellucid.config import Attention
from pellucid.engine import requests
from pellucid.engine.plans import DecodeStep, Plans, StepBuffers
from pellucid.nn.linear import Linear
from pellucid.nn.transformer import Decoder, EncoderDecoder
from pellucid.ops import native
from pellucid.ops.blocks import Blocks

MOST = 512  # rows of a plan, of its blocks and of its head


class ChunkBuffers(StepBuffers):
    """The input buffers of a step of up to n rows, some of prompts, which returns the logits of up to w rows.

    words, head_words: those of the plan that count its rows, and those of its head.  body: the number of calls before the head.
    """

    names = (*StepBuffers.names, "runs", "wanted")
    words: native.RowWords | None = None
    head_words: native.RowWords | None = None
    body = 0

    def __init__(self, n: int, pages: PagedCache) -> None:
        super().__init__(n, pages, 0)
        self.runs, self.wanted = torch.zeros(n + 2, dtype=torch.long), torch.zeros(n, dtype=torch.long)

    def first(self, n: int, w: int) -> "ChunkBuffers":
        """Return buffers of n rows and w logits in the memory of these."""
        own = copy(self)
        own.tokens, own.positions, own.lengths = self.tokens[:, :n], self.positions[:, :n], self.lengths[:, :n]
        own.tables = {allocator: tables[:n] for allocator, tables in self.tables.items()}
        own.wanted = self.wanted[:w]
        return own

    def fill(self, tokens: Sequence[int], step: Step, wanted: Sequence[int]) -> None:
        """Fill the buffers with the rows of a step and the tables of their texts."""
        count, texts, numbers = len(tokens), len(step.spans), self.numbers
        numbers["tokens"][0, :count] = tokens
        numbers["runs"][: texts + 2] = [texts, *(s.start for s in step.spans), count]
        numbers["wanted"][: len(wanted)] = wanted
        numbers["positions"][0, :count], numbers["lengths"][0, :count] = step.positions[0].numpy(), step.totals()[0].numpy()
        for allocator in self.tables:
            for s in step.spans:
                allocator.fill(numbers[allocator][s.start : s.stop], s.request)


class ChunkPlans(Plans):
    """The plans of a model's steps with rows of prompts over one set of pages."""

    def __init__(self, model: Decoder | EncoderDecoder, pages: PagedCache, deterministic: bool) -> None:
        super().__init__(model, pages)
        self.planned = self.device.type == "cpu" and chunkable(model) and (deterministic or by_kernels(model))
        blocks = any(isinstance(p, Blocks) for p in model.parameters())
        self.sizes = [native.ROWS, *([native.BLOCK_ROWS] if blocks else []), MOST]  # rows up to which a product has one kernel
        self.memory, self.shared = native.ReusedMemory(), ChunkBuffers(MOST if self.planned else 0, pages)

    def takes(self, rows: int, wanted: int) -> bool:
        """True if a step of this number of rows, with logits of `wanted` of them, may be a plan."""
        return self.planned and rows <= MOST and wanted <= MOST and native.available() and not any(self.hooks)

    def ready(self, n: int) -> bool:
        """True if there is a plan for n texts that decode."""
        return self.takes(n, n) and (key := (self.size(n), self.size(n))) in self.buffers and self.buffers[key].plan is not None

    def run(
        self, tokens: Sequence[int], step: Step, wanted: Sequence[int], texts: Sequence[requests.Sequence] = (), steps: int = 1
    ) -> Tensor | None:
        """Compute the rows of a step. Returns the logits [wanted V], valid until the next step, and sets `best`. None: not a plan.

        texts, steps: if each has one row, and pages for `steps` tokens, up to as many steps run as a burst: see Plans.step.
        """
        self.ran, self.drawn = 1, []
        rows = len(tokens)
        buffers = self.buffers_for((self.size(rows), self.size(len(wanted))))
        assert isinstance(buffers, ChunkBuffers)
        if not self.takes(rows, len(wanted)) or not self.pages.pools:  # hooks that the buffers have found; the first step of all
            return None
        buffers.fill(tokens, step, wanted)
        if buffers.words is None:
            self.record(buffers, step.spans)
        if buffers.words is None or buffers.head_words is None or not isinstance(buffers.plan, native.Plan):
            self.planned = False
            return None
        buffers.words.set(rows)
        buffers.head_words.set(len(wanted))
        if steps > 1:
            self.burst(buffers, texts, steps)
        else:
            buffers.plan.replay(None if wanted else buffers.body)
        self.best = buffers.best[: len(wanted)]
        return buffers.logits[: len(wanted)]

    def size(self, n: int) -> int:
        """Return the number of rows, or of logits, that the plan of a step of n is recorded for."""
        return next(size for size in self.sizes if n <= size)

    def empty_buffers(self, n: Any) -> StepBuffers:
        rows, logits = n
        return self.shared.first(rows, logits)

    def record(self, buffers: StepBuffers, spans: tuple[Span, ...]) -> None:
        """Record a step of all rows of the buffers. Stores the plan, or the reason why it cannot be recorded."""
        super().record(buffers, spans)
        buffers.step = None  # it holds the rows of all layers
        assert isinstance(buffers, ChunkBuffers)
        if isinstance(buffers.plan, native.Plan):
            buffers.body = buffers.plan.before(buffers.wanted)
            try:
                buffers.words = native.RowWords(buffers.plan, buffers.tokens.shape[1], slice(0, buffers.body))
                buffers.head_words = native.RowWords(buffers.plan, len(buffers.wanted), slice(buffers.body, len(buffers.plan.calls)))
            except native.Unplannable as error:
                buffers.refused = str(error)

    def step_of(self, buffers: StepBuffers, spans: tuple[Span, ...]) -> DecodeStep:
        assert isinstance(buffers, ChunkBuffers)
        step = super().step_of(buffers, spans)
        step.runs, step.wanted = buffers.runs, buffers.wanted
        return step

    def recording(self, buffers: StepBuffers, spans: tuple[Span, ...]) -> AbstractContextManager[native.Recording]:
        return native.record(self.memory, dry=True)


def by_kernels(model: Decoder | EncoderDecoder) -> bool:
    """True if the kernels multiply many rows by each of a model's matrices faster than torch."""
    matrices = (m.weight for m in model.modules() if isinstance(m, Linear))
    return all(isinstance(w, Blocks) or native.leads(w.dtype) for w in matrices)


def chunkable(model: Decoder | EncoderDecoder) -> bool:
    """True if a model's rows of prompts may run by the kernels: plain attention and no experts, whose kernels are for few rows."""
    if not isinstance(model, Decoder) or stateful(model) or model.config.prefix:
        return False
    return all(isinstance(layer.attn, Attention) and not layer.ffn.experts for layer in model.config.layers)
