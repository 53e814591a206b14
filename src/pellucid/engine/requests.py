"""What is asked of the engine, and how far it has come.

A request is one prompt and n texts that go on from it; each text is a Sequence of its own once the prompt is stored.
"""

from collections.abc import Hashable
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from functools import cached_property
from typing import SupportsIndex

from pellucid.errors import UseError
from pellucid.nn.transformer import Decoder, Encoder, EncoderDecoder
from pellucid.ops.sampling.settings import Sampling

GREEDY = Sampling()


@dataclass(frozen=True)
class Request:
    """One prompt and what shall follow it.

    new: at most so many tokens.  stops: tokens that end a text, each its last.  n: texts; each draws by its own number.
    logprobs: so many likeliest beside each new token's own log-probability; None tells none.  scored: the prompt's too.
    source: an encoder's tokens.
    """

    prompt: tuple[int, ...]
    new: int = 32
    sampling: Sampling = GREEDY
    stops: frozenset[int] = frozenset()
    n: int = 1
    logprobs: int | None = None
    scored: bool = False
    source: tuple[int, ...] | None = None

    @property
    def budget(self) -> int:
        """The most tokens that a text of it comes to."""
        return len(self.prompt) + self.new


@dataclass(frozen=True)
class Token:
    """A token with its log-probability by the model's own distribution, and the likeliest ones, where they were asked for."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Output:
    """News of one text of a request: a token, or its end, or both. ended: "stop", "length", "cancelled" or "error"."""

    request: int
    index: int
    token: Token | None = None
    ended: str | None = None
    error: UseError | None = None
    scores: tuple[float, ...] = ()  # of the prompt's tokens from the second on, with the first news


@dataclass(eq=False)
class Sequence:
    """One text as the engine carries it. stored: rows that its pages hold; the next step brings the rest, or some of it."""

    number: int  # of its request, in the order of arrival
    index: int
    request: Request
    tokens: list[int]
    stored: int = 0
    siblings: int = 0  # texts that begin when this one's prompt is stored
    root: Hashable = None  # all that what it stores depends on, besides its tokens
    edited: bool = False  # by a watcher, so that what it stored serves nobody else
    scores: list[float] = field(default_factory=list)
    best: int | None = None  # the likeliest token of the last step, if that has told it

    @cached_property
    def key(self) -> int | str:
        """Its name in the pages, and for a watcher."""
        return name(self.number, self.index)

    @property
    def written(self) -> int:
        """New tokens so far."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def owed(self) -> int:
        """Rows not stored yet; one where it decodes."""
        return len(self.tokens) - self.stored


def name(number: int, index: int) -> int | str:
    """What a text is called: 3 is request 3's first, "3.1" its second."""
    return f"{number}.{index}" if index else number


def check(module: Decoder | EncoderDecoder, request: Request, place: str = "") -> None:
    """Refuse what no forward could answer: ids outside the vocabulary, an empty prompt, a text longer than the positions.

    place: which of several, "[3]".
    """
    if isinstance(module, Encoder):
        raise UseError("generate.encoder")
    if not whole(request.new, 0):
        raise UseError("generate.new", found=request.new)
    if not whole(request.n, 1):
        raise UseError("generate.n", found=request.n)
    if not whole(0 if request.logprobs is None else request.logprobs, 0):
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


def whole(value: object, least: int) -> bool:
    """A whole number, and not True."""
    return type(value) is int and value >= least


def check_ids(ids: Tokens[int], vocab: int) -> None:
    """Every id lies in the vocabulary."""
    for i in ids:
        number = type(i) is int or isinstance(i, SupportsIndex)  # to ask a protocol takes 20 µs
        if not number or not 0 <= i.__index__() < vocab:
            raise UseError("decode.id", id=i, last=vocab - 1)
