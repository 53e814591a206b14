"""One forward for all the rows of a step: texts end to end in one row, each against its own pages.

Where every text brings one row, the step is a replayed plan, if the model has one.
"""

from collections.abc import Mapping
from contextlib import nullcontext

import torch
from torch import Tensor

from pellucid.batch.kv_cache import PagedCache
from pellucid.batch.mask import prefix
from pellucid.batch.step import Step
from pellucid.engine.plans import Plans
from pellucid.engine.requests import Sequence
from pellucid.nn.transformer import Decoder, EncoderDecoder
from pellucid.ops import native


class Forward:
    """{text: new rows} -> {text: logits [rows V]}: of its last row where that is its newest token, of all its rows where it is scored.

    every: the model computes the logits of all rows, for whoever watches them.  deterministic: a row has the same bits in any company.
    """

    def __init__(self, module: Decoder | EncoderDecoder, pages: PagedCache, every: bool = False, deterministic: bool = False) -> None:
        self.module, self.pages, self.every = module, pages, every
        self.around = native.any_rows if deterministic else nullcontext
        self.plans = Plans(module, pages)

    def __call__(self, chunks: Mapping[Sequence, int]) -> dict[Sequence, Tensor]:
        with torch.no_grad(), self.around():
            return self.rows(chunks)

    def rows(self, chunks: Mapping[Sequence, int]) -> dict[Sequence, Tensor]:
        """The logits, by a plan or by the forward."""
        if not self.every and all(s.owed == 1 and s.written and self.has_memory(s) for s in chunks):
            logits = self.plans.step({s.key: s.tokens[-1] for s in chunks})
            for s, best in zip(chunks, self.plans.best.tolist(), strict=True):
                s.best = best
            return dict(zip(chunks, logits.unsqueeze(1).unbind(), strict=True))
        wanted = {s: wants(s, rows) for s, rows in chunks.items()}
        step = Step.paged(self.pages, {s.key: rows for s, rows in chunks.items()})
        at = [row for span, rows in zip(step.spans, wanted.values(), strict=True) for row in range(span.stop - rows, span.stop)]
        step.wanted = None if self.every else torch.tensor(at, dtype=torch.long)
        told = [s.tokens[s.stored : s.stored + rows] for s, rows in chunks.items()]
        out = self.logits(self.row([t for tokens in told for t in tokens]), step, list(chunks))
        step.advance()
        if not self.every:
            return dict(zip(wanted, out[0].split(list(wanted.values())), strict=True))
        # views, not a copy by number: what is sampled from them knows the tensor that it was read from
        return {s: out[0, span.stop - rows : span.stop] for (s, rows), span in zip(wanted.items(), step.spans, strict=True)}

    def logits(self, tokens: Tensor, step: Step, sequences: list[Sequence]) -> Tensor:
        """The model's own forward of these rows."""
        if isinstance(self.module, Decoder):
            if self.module.config.prefix and (fresh := [s for s in sequences if not s.stored and not s.request.scored]):
                step.mask = prefix(len(fresh[0].request.prompt))  # of a row that only decodes it takes nothing away
            return self.module(tokens, step)  # type: ignore[no-any-return]
        told = {s.key: list(s.request.source or ()) for s in sequences if not self.has_memory(s)}
        if not told:
            return self.module(None, tokens, step)  # type: ignore[no-any-return]
        source = Step.packed([len(t) for t in told.values()], tokens.device, list(told))
        return self.module(self.row([i for t in told.values() for i in t]), tokens, step, source)  # type: ignore[no-any-return]

    def has_memory(self, s: Sequence) -> bool:
        """Whether the memory of its source is there, if it has one: a text that was put off has lost it, whatever its pages kept."""
        return s.request.source is None or any(key == s.key for _, key in self.pages.memory)

    def row(self, tokens: list[int]) -> Tensor:
        return torch.tensor([tokens], dtype=torch.long, device=next(self.module.parameters()).device)


def wants(s: Sequence, rows: int) -> int:
    """How many rows of a chunk, the last ones, have logits that somebody reads."""
    if s.request.scored and not s.written:
        return rows
    return int(rows == s.owed)
