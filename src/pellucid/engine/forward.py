"""The forward of a step: the rows of all sequences end to end, each against its own pages.

If every sequence decodes, the step is a replayed plan, if the model has one (see plans.py), or several steps are one burst; one with rows
of prompts, or of many sequences, is a plan of another kind (see chunk_plans.py).
"""

from collections.abc import Hashable, Mapping
from contextlib import nullcontext

import torch
from torch import Tensor

from pellucid.batch.kv_cache import PagedCache
from pellucid.batch.mask import prefix
from pellucid.batch.step import Step
from pellucid.engine.chunk_plans import ChunkPlans
from pellucid.engine.graphs import plans_for
from pellucid.engine.plans import Plans
from pellucid.engine.requests import Sequence
from pellucid.engine.thread_choice import ThreadChoice
from pellucid.nn.transformer import Decoder, EncoderDecoder
from pellucid.ops import native
from pellucid.watching.tap import here
from pellucid.watching.watch import watch


class Forward:
    """A function from {sequence: number of new rows} to {sequence: logits [rows V]}, after a burst those of its last step.

    A sequence gets the logits of its newest token, if that is among its rows, and of the proposals behind it; a scored one those of all
    its rows.

    all_logits: the model computes the logits of every row, for a watch.
    deterministic: a row has the same bits in any batch.
    """

    def __init__(self, module: Decoder | EncoderDecoder, pages: PagedCache, all_logits: bool = False, deterministic: bool = False) -> None:
        self.module, self.pages, self.all_logits = module, pages, all_logits
        self.kernels = native.any_rows if deterministic else nullcontext
        self.plans, self.chunk_plans = plans_for(module, pages), ChunkPlans(module, pages, deterministic)
        self.threads = ThreadChoice()

    def __call__(self, chunks: Mapping[Sequence, int]) -> dict[Sequence, Tensor]:
        alike = 0 if here.watches or not all(s.pending == 1 and s.written for s in chunks) else sum(chunks.values())
        measured = alike if alike and self.plans.ready(alike) else 0
        threads = self.threads.number(measured)
        began = self.threads.clock()
        with torch.no_grad(), self.kernels(), native.on_threads(threads):
            out = self.rows(chunks)
        if measured:
            self.threads.took(threads, (self.threads.clock() - began) / self.plans.ran)
        return out

    def ready(self, n: int) -> bool:
        """True if a burst of steps of n sequences that decode may run. While numbers of threads are tried, each step runs alone."""
        if self.threads.trials:
            return False
        return self.plans.ready(n) if n <= native.ROWS else self.chunk_plans.ready(n)

    def rows(self, chunks: Mapping[Sequence, int]) -> dict[Sequence, Tensor]:
        """Compute the logits, by a plan of a row each if every sequence decodes."""
        many = len(chunks) > native.ROWS and self.chunk_plans.takes(len(chunks), len(chunks))
        if not self.all_logits and not many and all(s.pending == 1 and s.written and self.has_memory(s) for s in chunks):
            feed: dict[Hashable, int] = {s.key: s.tokens[-1] for s in chunks}
            proposed: dict[Hashable, list[int]] = {s.key: s.proposed for s in chunks if s.proposed}
            logits = self.plans.step(feed, proposed, texts=list(chunks), steps=min(s.steps for s in chunks))
            give_choices(self.plans, chunks)
            return dict(zip(chunks, logits.split(list(chunks.values())) if len(chunks) > 1 else (logits,), strict=True))
        return self.chunk_rows(chunks)

    def chunk_rows(self, chunks: Mapping[Sequence, int]) -> dict[Sequence, Tensor]:
        """Compute the logits of a step with rows of prompts, by a plan if it is all kernels, otherwise by the model's forward."""
        steps = min(s.steps for s in chunks)
        for s in chunks:
            s.steps = 1
        wanted = {s: wanted_rows(s, rows) for s, rows in chunks.items()}
        step = Step.paged(self.pages, {s.key: rows for s, rows in chunks.items()})
        at = [row for span, rows in zip(step.spans, wanted.values(), strict=True) for row in range(span.stop - rows, span.stop)]
        tokens = [t for s, rows in chunks.items() for t in s.tokens[s.stored : s.stored + rows]]
        plannable = not self.all_logits and max(wanted.values()) <= 1 and self.chunk_plans.takes(len(tokens), len(at))
        with native.any_rows(alone=False) if plannable else nullcontext():  # a watched step has the bits of a plan
            if plannable and not here.watches and (logits := self.chunk_plans.run(tokens, step, at, [*chunks], steps)) is not None:
                give_choices(self.chunk_plans, wanted)
                step.advance(self.chunk_plans.ran)
                return dict(zip(wanted, logits.split(list(wanted.values())), strict=True))
            step.wanted = None if self.all_logits else torch.tensor(at, dtype=torch.long, device=self.pages.device)
            out = self.logits(self.row(tokens), step, list(chunks))
        step.advance()
        if not self.all_logits:
            return dict(zip(wanted, out[0].split(list(wanted.values())), strict=True))
        # views, not a copy by number: a sample is recorded with the tensor that it was read from
        return {s: out[0, span.stop - rows : span.stop] for (s, rows), span in zip(wanted.items(), step.spans, strict=True)}

    def logits(self, tokens: Tensor, step: Step, sequences: list[Sequence]) -> Tensor:
        """Run the model's forward on these rows, and its encoder on sources that have no memory yet."""
        if isinstance(self.module, Decoder):
            if self.module.config.prefix and (fresh := [s for s in sequences if not s.stored and not s.request.scored]):
                step.mask = prefix(len(fresh[0].request.prompt))  # it hides nothing from a row that only decodes
            return self.module(tokens, step)  # type: ignore[no-any-return]
        sources = {s.key: list(s.request.source or ()) for s in sequences if not self.has_memory(s)}
        if not sources:
            return self.module(None, tokens, step)  # type: ignore[no-any-return]
        source = Step.packed([len(t) for t in sources.values()], tokens.device, sources)
        return self.module(self.row([i for t in sources.values() for i in t]), tokens, step, source)  # type: ignore[no-any-return]

    def has_memory(self, s: Sequence) -> bool:
        """True if the sequence has no source, or the memory of its source is stored. Preemption drops it, even if pages are kept."""
        return s.request.source is None or any(key == s.key for _, key in self.pages.memory)

    def row(self, tokens: list[int]) -> Tensor:
        return torch.tensor([tokens], dtype=torch.long, device=next(self.module.parameters()).device)


def give_choices(plans: Plans, rows: Mapping[Sequence, int]) -> None:
    """Give each sequence what the last call of plans chose: a burst's tokens, and where the largest logit of each of its rows is."""
    drawn = plans.drawn or [[] for _ in rows]
    for s, tokens in zip(rows, drawn, strict=True):
        s.steps, s.drawn = plans.ran, tokens
    if len(drawn[0]) < plans.ran:  # the last choice is Python's
        best, start = plans.best.tolist(), 0
        for s, count in rows.items():
            s.best, start = best[start : start + count], start + count


def wanted_rows(s: Sequence, rows: int) -> int:
    """Return the number of a chunk's rows, from its end, that need logits."""
    if not s.written and (s.request.scored or (s.request.watched is not None and s.request.watched.wants("logits"))):
        return rows
    return int(rows == s.pending)


def first_nonfinite(module: Decoder | EncoderDecoder, ids: list[int], source: tuple[int, ...] | None = None) -> str:
    """Run the model once more on these ids. Returns the path of the first tensor with a NaN or an infinity, "-" if there is none."""
    inputs = [torch.tensor([list(t)], device=next(module.parameters()).device) for t in (source, ids) if t is not None]
    with torch.no_grad(), watch(module, keep=lambda x: bool(x.isfinite().all())) as seen:
        module(*inputs)
    return next((s.path for s in seen if not s.value), "-")
