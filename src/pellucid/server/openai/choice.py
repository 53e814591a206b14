"""One text of an answer as it grows: its new characters, its tokens with their log-probabilities, and why it ended."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pellucid.engine.requests import Likeliest, Output
from pellucid.engine.text import Text
from pellucid.tokenizer.pieces import Stream


@dataclass(frozen=True)
class TokenEntry:
    """A token with its log-probability, None for the first of a prompt, and the likeliest tokens in its place.

    start: where its text begins in the text of the answer; a byte within a character begins where the character does.
    """

    id: int
    logprob: float | None
    top: Likeliest = ()
    start: int = 0


@dataclass
class Delta:
    """What an output adds to a text. finish: "stop" or "length"; reason: the stop string or the stop token that ended it."""

    text: str = ""
    entries: list[TokenEntry] = field(default_factory=list)
    finish: str | None = None
    reason: str | int | None = None


class Choice:
    """One text of an answer. stops: strings that end it and are not part of it; before `least` tokens they end nothing.

    stream: makes text of its ids.  before: characters of the prompt that is echoed.  tokens: the number of new tokens.
    ended: its last delta has been returned.
    """

    def __init__(self, stream: Stream, stops: Sequence[str], least: int, before: int = 0) -> None:
        self.text, self.before = Text(stream, stops), before
        self.stops, self.least = self.text.stops, least
        self.tokens, self.ended = 0, False

    def feed(self, output: Output) -> Delta:
        """Add an output. A stop token is counted, and its own text is left out."""
        delta = Delta()
        if self.ended:
            return delta
        token, stopped = output.token, output.ended == "stop"
        if token is not None:
            self.tokens += 1
            start = len(self.text.shown) + len(self.text.withheld)
            if not stopped:
                self.text.stops = self.stops if self.tokens > self.least else ()
                delta.text = self.text.feed(token.id)
            if self.text.stop is not None:
                start = min(start, len(self.text.shown))
            delta.entries.append(TokenEntry(token.id, token.logprob, token.top, self.before + start))
        if self.text.stop is None and output.ended is not None:
            delta.text += self.text.end()
            delta.finish = "stop" if stopped else "length"
            delta.reason = token.id if stopped and token is not None else None
        if self.text.stop is not None:
            delta.finish, delta.reason = "stop", self.text.stop
        self.ended = delta.finish is not None
        return delta
