"""A draft: a smaller model that proposes the next tokens of a larger one's texts (arXiv 2211.17192).

    text       the capital of France is       the draft writes on, a row a step, with the text's own settings, seed and constraint
    draft                                  Paris  .  It
    checked                                Paris  .  The      two are accepted, and The is the step's third token

A draw is a function of seed, step and logits, so that where both models' logits are alike, both draw the same token.

The draft reads a text in pages of its own, and follows it: the rows of its guesses lie behind those of the text's tokens, uncounted, and
are counted once the text has accepted them. Where its pages are full, a text has no proposals; no text waits for it.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from pellucid.batch.states import stateful
from pellucid.engine.allowed import allowed
from pellucid.engine.forward import Forward
from pellucid.engine.memory import Memory, pages_for, restart_lengths
from pellucid.engine.proposals import agreement, trust
from pellucid.engine.requests import Request, Sequence
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.errors import UseError
from pellucid.nn.transformer import Decoder, Encoder, EncoderDecoder
from pellucid.ops.sampling.stages import choose


@dataclass
class Followed:
    """A text of the engine as the draft has it. own: its tokens that the draft has read or will.  guessed: tokens whose rows lie behind."""

    own: Sequence
    guessed: list[int] = field(default_factory=list)


class Draft:
    """A draft model over its own pages, for `count` pages of `size` rows in all.

    vocab: the ids of the model that it proposes to. limits: its `rows` bound what one step reads of prompts.
    pace: its pauses, over all texts, while none of its guesses is accepted.
    """

    def __init__(self, module: Decoder, vocab: int, count: int, size: int, limits: SchedulerLimits, prefix_cache: bool = True) -> None:
        self.module, self.vocab, self.rows = module, vocab, limits.rows
        pages = pages_for(module, count, limits, size, False)
        self.memory, self.forward = Memory(module, pages, prefix_cache), Forward(module, pages)
        self.texts: dict[int | str, Followed] = {}
        self.pace = trust()

    def propose(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        """Return tokens that may follow each text, at most its number; none for one that it has not read yet, or has no room for."""
        with torch.no_grad():
            followed = {s: text for s, most in wanted.items() if (text := self.follow(s, most)) is not None}
            self.read([text.own for text in followed.values()])
            ready = {s: text for s, text in followed.items() if text.own.pending <= 2 and self.reserve(text.own, len(s.tokens) + wanted[s])}
            out: dict[Sequence, list[int]] = {s: [] for s in ready}
            writing = list(ready)
            while writing:
                rows = self.step({s: ready[s] for s in writing}, out)
                more = [self.extend(s, out[s], *row) and len(out[s]) < wanted[s] for s, row in zip(writing, rows, strict=True)]
                writing = [s for s, goes_on in zip(writing, more, strict=True) if goes_on]
        for s, text in ready.items():
            text.guessed = out[s][:-1]
        return out

    def follow(self, s: Sequence, most: int) -> Followed | None:
        """Bring the draft's tokens of a text up to the text's own. None if it has no place for `most` more, or a token that it lacks."""
        positions, text = self.module.config.positions, self.texts.get(s.key)
        fresh = s.tokens[0 if text is None else len(text.own.tokens) :]
        if not fresh or max(fresh) >= self.module.config.vocab or (positions is not None and len(s.tokens) + most > positions):
            return None
        if text is None:
            own = Sequence(s.number, s.index, Request(s.request.prompt, s.request.new), fresh)
            own.stored = self.memory.open(own)
            text = self.texts[s.key] = Followed(own)
            return text
        self.count(text.own, text.own.stored + agreement(text.guessed, fresh))
        text.own.tokens += fresh
        text.guessed = []
        return text

    def reserve(self, own: Sequence, tokens: int) -> bool:
        """Take pages for `tokens` tokens of a text. False if there are too few."""
        if not self.memory.can_grow(own.key, tokens):
            return False
        self.memory.reserve(own.key, tokens)
        return True

    def count(self, own: Sequence, rows: int) -> None:
        """Count the first `rows` rows of a text as stored."""
        own.stored = rows
        self.memory.accept(own.key, rows)

    def read(self, texts: Iterable[Sequence]) -> None:
        """Read what it has not read of these texts, but for the newest token or two, in at most `rows` rows."""
        chunks, left = dict[Sequence, int](), self.rows
        for own in texts:
            rows = min(own.pending - 1, left)
            if own.pending > 2 and rows and self.reserve(own, own.stored + rows):
                chunks[own] = rows
                left -= rows
        if chunks:
            self.forward(chunks)
            for own, rows in chunks.items():
                own.stored += rows

    def step(self, texts: Mapping[Sequence, Followed], out: Mapping[Sequence, list[int]]) -> list[tuple[Tensor, int]]:
        """Run a row of each text behind its newest guess, or first its newest tokens. Return logits [V] and the likeliest token of each."""
        begun = {s: text.own for s, text in texts.items() if not out[s]}
        feed: dict[Hashable, int] = {s.key: own.tokens[own.stored] for s, own in begun.items()}
        behind: dict[Hashable, list[int]] = {s.key: own.tokens[own.stored + 1 :] for s, own in begun.items()}
        feed = {s.key: feed[s.key] if s in begun else out[s][-1] for s in texts}
        rows = self.forward.plans.step(feed, behind, {s.key: len(out[s]) - 1 for s in texts if out[s]})
        best = self.forward.plans.best.tolist()
        for own in begun.values():
            self.count(own, len(own.tokens))
        return [(rows[end - 1], best[end - 1]) for end in accumulate(1 + len(behind.get(s.key, ())) for s in texts)]

    def extend(self, s: Sequence, out: list[int], logits: Tensor, best: int) -> bool:
        """Append the token that the draft's logits give to the proposals of a text. False if there is none, or it ends the text."""
        written = [*s.new_tokens, *out]
        logits = logits[: self.vocab]
        if (missing := self.vocab - len(logits)) > 0:
            logits = torch.nn.functional.pad(logits, (0, missing), value=float("-inf"))
        try:
            tokens = allowed(s.request, written, s.index, self.vocab)
            id = choose(logits, s.request.sampling, s.request.prompt, written, s.index, best if best < self.vocab else None, tokens)
        except UseError:  # nothing is left to draw from: the text itself will tell
            return False
        if id >= self.module.config.vocab:
            return False
        out.append(id)
        return id not in s.request.stops

    def close(self, key: int | str) -> None:
        """Give back the pages of a text. Does nothing for one that it does not follow."""
        if (text := self.texts.pop(key, None)) is not None:
            self.memory.close(text.own)

    def forget(self) -> None:
        """Drop all rows of ended texts."""
        self.memory.forget()

    def recover(self) -> None:
        """Take back all pages of all texts, after a step that failed at any call."""
        self.texts.clear()
        self.memory.recover()


def require_proposals(module: Decoder | EncoderDecoder, model: str) -> None:
    """Raise a UseError for a model whose texts take no proposals: its states or angles cannot go back, or it has a source.

    model: its name.
    """
    if not isinstance(module, Decoder):
        raise UseError("speculate.source", model=model)
    if stateful(module):
        raise UseError("speculate.states", model=model)
    if restart_lengths(module):
        raise UseError("speculate.angles", model=model)


def require_draft(module: Decoder | EncoderDecoder, model: str) -> None:
    """Raise a UseError for a model that cannot propose tokens. model: its name."""
    require_proposals(module, model)
    if isinstance(module, Encoder) or module.config.whole_prompts:
        raise UseError("speculate.draft", model=model)
