"""Requests, their outputs, and the state of each text.

A request is one prompt and n texts that continue it; each text is a Sequence of its own after the prompt is stored.
"""

from collections.abc import Hashable
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, SupportsIndex

from pellucid.engine.proposals import ProposalPace
from pellucid.errors import PellucidError, UseError
from pellucid.nn.transformer import Decoder, Encoder, EncoderDecoder
from pellucid.ops.sampling.settings import Sampling

if TYPE_CHECKING:
    from pellucid.engine.watched_text import WatchedText
    from pellucid.ops.sampling.token_mask import TokenMask

Likeliest = tuple[tuple[int, float], ...]  # tokens with their log-probabilities, the likeliest first
GREEDY = Sampling()


class TokenConstraint(Protocol):
    """What the tokens of a text must be, such as a grammar."""

    def allowed(self, written: Tokens[int], index: int) -> "TokenMask | None":
        """Return the tokens that may follow text number `index` after these new tokens; None allows all.

        A function of its arguments: a step may be computed again.
        """

    def admits(self, written: Tokens[int], index: int, token: int) -> bool:
        """Return whether `allowed` has this token. False is always right: it only leaves the answer to the mask."""


@dataclass(frozen=True)
class Request:
    """One prompt, and the settings of its continuation.

    new: the most new tokens.  stops: tokens that end a text, each its last.  n: texts; each samples by its own index.
    logprobs: the number of likeliest tokens to return with each new token's log-probability; None returns neither.
    scored: return the log-probabilities of the prompt.  source: an encoder's tokens.
    least: new tokens before a stop may come.  priority: a waiting request with a smaller one begins earlier.
    watched: a watch of its text, which EngineThread opens. Its prompt runs in one step, and reads no stored rows.
    stepwise: no bursts, since its reader may end it after any token.
    streamed: its tokens are read as they come. False: a burst may keep them for longer (see bursts.py).
    speculate: propose tokens, from the text itself or by the engine's draft, so that a step may give it several; the text stays the same.
    """

    prompt: tuple[int, ...]
    new: int = 32
    sampling: Sampling = GREEDY
    stops: frozenset[int] = frozenset()
    n: int = 1
    logprobs: int | None = None
    scored: bool = False
    source: tuple[int, ...] | None = None
    least: int = 0
    priority: int = 0
    constraint: TokenConstraint | None = None
    watched: "WatchedText | None" = None
    speculate: bool = False
    stepwise: bool = False
    streamed: bool = True

    @property
    def budget(self) -> int:
        """Return the most tokens of one of its texts."""
        return len(self.prompt) + self.new


@dataclass(frozen=True)
class Token:
    """A new token; if the request has `logprobs`, with its log-probability in the model's own distribution and the likeliest tokens."""

    id: int
    logprob: float | None = None
    top: Likeliest = ()


@dataclass(frozen=True)
class Output:
    """A token of one text of a request, or its end, or both. ended: "stop", "length", "cancelled" or "error".

    With the first output come, of the prompt's tokens from the second on, `scores`: their log-probabilities, and `tops`: the likeliest
    tokens there, if the request is scored and has `logprobs`; and `cached`: the number of the prompt's rows that were stored already.
    same_step: the token came in the step of the one before it, which had been proposed.  proposed: tokens proposed to that step's text,
    told with its first token.
    """

    request: int
    index: int
    token: Token | None = None
    ended: str | None = None
    error: PellucidError | None = None
    scores: tuple[float, ...] = ()
    tops: tuple[Likeliest, ...] = ()
    cached: int = 0
    same_step: bool = False
    proposed: int = 0


@dataclass(eq=False)
class Sequence:
    """One text of a request. stored: rows in its pages; the next steps compute the rest."""

    number: int  # of its request, in the order of arrival
    index: int
    request: Request
    tokens: list[int]
    stored: int = 0
    siblings: int = 0  # texts that begin when this one's prompt is stored
    root: Hashable = None  # everything that its stored rows depend on besides tokens: the prefix cache's key
    edited: bool = False  # by a watch, so that its pages never enter the prefix cache
    scores: list[float] = field(default_factory=list)
    tops: list[Likeliest] = field(default_factory=list)
    cached: int | None = None  # rows that were stored already when it first began
    best: list[int] = field(default_factory=list)  # the likeliest token after each row of the last step, if a plan has computed them
    proposed: list[int] = field(default_factory=list)  # tokens that the next step computes behind the newest
    pace: ProposalPace | None = None  # of its proposals
    steps: int = 1  # the most that the next run may take as a burst; after it those that it took
    drawn: list[int] = field(default_factory=list)  # tokens that the last run has chosen

    @cached_property
    def key(self) -> int | str:
        """Return its name in the pages, and for a watch."""
        return name(self.number, self.index)

    @property
    def written(self) -> int:
        """Return the number of new tokens so far."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def new_tokens(self) -> list[int]:
        """Return its tokens behind the prompt."""
        return self.tokens[len(self.request.prompt) :]

    @property
    def pending(self) -> int:
        """Return the number of rows not stored yet; 1 while it decodes."""
        return len(self.tokens) - self.stored

    def restart(self) -> None:
        """Forget what was computed, so that all rows run again."""
        self.stored, self.scores, self.tops, self.best, self.proposed, self.drawn, self.steps = 0, [], [], [], [], [], 1


def name(number: int, index: int) -> int | str:
    """Name a text: 3 is request 3's first, "3.1" its second."""
    return f"{number}.{index}" if index else number


def check(module: Decoder | EncoderDecoder, request: Request, place: str = "") -> None:
    """Raise UseError for a request that no forward can answer: ids outside the vocabulary, no prompt, more tokens than positions.

    place: the request's place in a list, for the error: "[3]".
    """
    if isinstance(module, Encoder):
        raise UseError("generate.encoder")
    if not is_integer(request.new, 0):
        raise UseError("generate.new", found=request.new)
    if not is_integer(request.n, 1):
        raise UseError("generate.n", found=request.n)
    if not is_integer(request.least, 0) or request.least > request.new:
        raise UseError("generate.least", found=request.least, most=request.new)
    if not is_integer(0 if request.logprobs is None else request.logprobs, 0):
        raise UseError("generate.logprobs", found=request.logprobs)
    rows = module.config.positions
    for which, text, new in (("prompt", request.prompt, request.new), ("source", request.source, 0)):
        if text is None:
            continue
        if not len(text):
            raise UseError("generate.empty", name=which + place)
        check_ids(text, module.config.vocab)
        if rows is not None and len(text) + new > rows:
            raise UseError("generate.context", tokens=len(text), new=new, rows=rows)
    request.sampling.check(module.config.vocab)


def is_integer(value: object, least: int) -> bool:
    """True if value is an int, not a bool, and at least `least`."""
    return type(value) is int and value >= least


def check_ids(ids: Tokens[int], vocab: int) -> None:
    """Raise UseError unless every id is in the vocabulary."""
    for i in ids:
        number = type(i) is int or isinstance(i, SupportsIndex)  # isinstance of a protocol takes 20 µs
        if not number or not 0 <= i.__index__() < vocab:
            raise UseError("decode.id", id=i, last=vocab - 1)
