"""What a chat costs: its turns run by the engine, with what each forward computed and moved.

    way        the first token of an answer reads         each later token reads
    none       the text up to here                        the text up to here, again
    cache      the text up to here                        itself: keys and values of the turn are kept
    shared     the new message: the cache has the rest    itself
    new        the message, in a chat of its own          itself

Bytes are the weights once a forward, and keys and values that are written and read; activations are not among them.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from pellucid.analysis.independence import row_gaps
from pellucid.analysis.rows import stream
from pellucid.api.model import Model
from pellucid.api.trace import trace
from pellucid.batch.kv_cache import PagedCache
from pellucid.engine.engine import Engine
from pellucid.engine.forward import Forward
from pellucid.engine.memory import Memory
from pellucid.engine.requests import Sequence as Running
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.training.corpus import LEAD, corpora
from pellucid.training.invented import paired, read_words
from pellucid.watching.watch import Watch, watch

WAYS = ("none", "cache", "shared", "new")
NEW = 2  # tokens of an answer: a word and its stop
SEED = 5


@dataclass(frozen=True)
class ReadingChat:
    """A chat as texts. opening: what stands before the first message.  expected: the word that answers each message."""

    opening: str
    messages: Sequence[str]
    expected: Sequence[str]


@dataclass(frozen=True)
class Cost:
    """What forwards cost. rows: that they computed.  flops: of their products.  moved: bytes of weights and cache."""

    rows: int = 0
    flops: int = 0
    moved: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.rows + other.rows, self.flops + other.flops, self.moved + other.moved)

    @property
    def intensity(self) -> float:
        """Return FLOPs for each byte."""
        return self.flops / self.moved if self.moved else 0.0


@dataclass(frozen=True)
class Turn:
    """A message and its answer. tokens: that the answer follows.  right: it is the expected one.

    prefill: of the first token.  decode: of the later ones.  handed: bytes of keys and values that decoding takes over.
    """

    tokens: int
    answer: str
    right: bool
    prefill: Cost
    decode: Cost
    handed: int

    @property
    def total(self) -> Cost:
        """Return the cost of both phases."""
        return self.prefill + self.decode


def reading_chat(facts: int) -> ReadingChat:
    """Return a chat that opens with invented facts and asks for each; its last but one message states another, which the last asks for."""
    words = read_words(corpora()["pellucid/reader"])[0]
    lead, thing = LEAD[words.language], words.things[0]
    *known, late = paired(words, facts + 1, True, random.Random(SEED))
    order = [*known[::-1], late]
    messages = [lead + words.prompt(thing, fact.name) for fact in order]
    messages[-2] = lead + words.statement(thing, late) + messages[-2]
    return ReadingChat(words.text(thing, known), messages, [lead + fact.value for fact in order])


class Meter:
    """An engine whose forwards are measured. costs: of each.  handed: bytes of keys and values after each that a next row sees.

    tokens: of the longest text.  keeps: whether ended texts stay in the prefix cache.

    all_rows: also keep rows that a layer with a window no longer sees.
    """

    def __init__(self, model: Model, tokens: int, keeps: bool, seen: Watch, all_rows: bool = False) -> None:
        self.model, self.seen, self.costs, self.handed = model, seen, list[Cost](), list[int]()
        self.engine = Engine.of(model.module, 2 * tokens, SchedulerLimits(tokens, 1), 1, keeps, all_rows)
        assert isinstance(self.engine.run, Forward) and isinstance(self.engine.storage, Memory)
        self.engine.run.plans.planned = False  # a replayed plan notes no FLOPs
        self.run, self.engine.run = self.engine.run, self.measured
        self.weights = sum(p.numel() * p.element_size() for p in model.module.parameters())
        self.pages = self.engine.storage.pages

    def measured(self, chunks: Mapping[Running, int]) -> dict[Running, torch.Tensor]:
        """Run one forward of one text, and note its cost."""
        ((text, rows),) = chunks.items()
        before, end = sum(self.seen.flops.values()), text.stored + rows
        out = self.run(chunks)
        moved = self.weights + cache_bytes(self.pages, rows, rows) + cache_bytes(self.pages, end, rows)
        self.costs.append(Cost(rows, sum(self.seen.flops.values()) - before, moved))
        self.handed.append(cache_bytes(self.pages, end, 1))
        return out

    def written(self, ids: Sequence[int], new: int) -> list[int]:
        """Return `new` tokens after ids, the likeliest each time."""
        (request,) = self.model.requests([ids], new)
        self.engine.submit(request)
        return [output.token.id for output in self.engine.outputs() if output.token is not None]


def cache_bytes(pages: PagedCache, end: int, rows: int) -> int:
    """Return the bytes of the keys and values, of a text of `end` tokens, that its last `rows` rows see."""
    windows = {part: pages.of(part).window for part in pages.pools}
    return sum(row_bytes(pages, part) * min(end, end if w is None else w + rows - 1) for part, w in windows.items())


def row_bytes(pages: PagedCache, part: nn.Module) -> int:
    """Return the bytes that a part stores of one token."""
    return sum(pool[0].numel() * pool.element_size() for pool in pages.pools[part])


def run_turns(model: Model, chat: ReadingChat, way: str) -> list[Turn]:
    """Run a chat in one of WAYS. Answers become part of the text that later messages follow."""
    texts = [model.ids(chat.opening), *(model.ids(message) for message in chat.messages)]
    longest = sum(map(len, texts)) + NEW * len(texts)
    with watch(model.module, only=()) as seen:
        meter = Meter(model, longest, way in ("shared", "new"), seen)
        ids, turns = list(texts[0]), list[Turn]()
        if way in ("shared", "new"):
            meter.written(ids, 1)  # the opening is stored before the chat begins
        for message, expected in zip(texts[1:], chat.expected, strict=True):
            ids = [*(texts[0] if way == "new" else ids), *message]
            meter.costs.clear()
            meter.handed.clear()
            tokens, answer = len(ids), list[int]()
            for count in [1] * NEW if way == "none" else [NEW]:
                answer += meter.written([*ids, *answer], count)
            first, *later = meter.costs
            right = model.tokenizer.decode(answer[:1]) == expected
            ids += answer
            turns.append(Turn(tokens, model.tokenizer.decode(answer), right, first, sum(later, Cost()), meter.handed[0]))
    return turns


def summed(turns: Sequence[Turn]) -> Cost:
    """Return the cost of all turns."""
    return sum((turn.total for turn in turns), Cost())


@dataclass(frozen=True)
class Changed:
    """A text of `tokens` tokens of which one changed, at place `at`. reused: rows that the cache still had.  computed: the others.

    differing: rows whose last block's output differs.  first: the first of them.
    """

    tokens: int
    at: int
    before: str
    after: str
    reused: int
    computed: int
    differing: int
    first: int


def changed_fact(model: Model, chat: ReadingChat, number: int) -> Changed:
    """Change the value of the opening's fact `number`, from 1, and read it with a cache that has the opening as it was."""
    *known, late = chat.expected
    old = known[::-1][min(number, len(known)) - 1]
    ids, other = model.ids(chat.opening), model.ids(chat.opening.replace(old, late))
    at = next(i for i, (a, b) in enumerate(zip(ids, other, strict=False)) if a != b)
    with watch(model.module, only=()) as seen:
        # with all rows: else a window of the model would leave none in the middle
        meter = Meter(model, max(len(ids), len(other)) + 1, True, seen, all_rows=True)
        meter.written(ids, 1)
        meter.costs.clear()
        meter.written(other, 1)
    computed = sum(cost.rows for cost in meter.costs)
    a, b = (stream(trace(model, own))[-1].value for own in (ids, other))
    both = min(len(ids), len(other))  # the new value may have more tokens, or fewer
    rows = [row for row, gap in enumerate(row_gaps(a[:, :both], b[:, :both])) if gap > 0] + list(range(both, len(other)))
    before, after = (model.tokenizer.decode([own[at]]) for own in (ids, other))
    return Changed(len(other), at, before, after, len(other) - computed, computed, len(rows), rows[0])
