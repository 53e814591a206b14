"""The stream of one request's text: never half a character, and nothing of a stop string.

    stops "ab", "bcd"     tokens "xa" "c" "b" "cz" "ya" "b"     shown "x" "ac" "" "bcz" "y" ""

The first complete stop string ends the text; of several that end there, the longest. So the cut does not depend on the tokens' bounds.
"""

from collections.abc import Sequence

from pellucid.errors import UseError
from pellucid.tokenizer.pieces import Stream

MOST, LONGEST = 16, 256  # stop strings of a request, and characters of one


class Text:
    """The text of a stream of tokens, up to the first stop string.

    shown: the text returned so far.  stop: the stop string that ended the text, None if none did.
    """

    def __init__(self, stream: Stream, stops: Sequence[str] = ()) -> None:
        check_stops(stops)
        self.stream, self.stops = stream, tuple(stops)
        self.stop: str | None = None
        self.shown, self.withheld = "", ""

    def feed(self, id: int) -> str:
        """Add a token. Returns the text that may be shown now, "" after a stop string."""
        return "" if self.stop is not None else self.release(self.stream.feed(id))

    def end(self) -> str:
        """Return the text that was held back, with U+FFFD for a character that stayed incomplete."""
        if self.stop is not None:
            return ""
        out = self.release(self.stream.end())
        rest, self.withheld = self.withheld, ""
        self.shown += rest
        return out + rest

    def release(self, piece: str) -> str:
        """Add text. Returns the text before a stop string, or before the beginning of a possible one."""
        text = self.withheld + piece
        met = [(at + len(stop), at, stop) for stop in self.stops if (at := text.find(stop)) >= 0]
        if met:
            _, cut, self.stop = min(met)
            out, self.withheld = text[:cut], ""
        else:
            begun = (n for stop in self.stops for n in range(1, min(len(stop), len(text) + 1)) if text.endswith(stop[:n]))
            cut = len(text) - max(begun, default=0)
            out, self.withheld = text[:cut], text[cut:]
        self.shown += out
        return out


def check_stops(stops: Sequence[str]) -> None:
    """Raise UseError unless there are at most MOST stop strings of 1 to LONGEST characters."""
    if isinstance(stops, str) or len(stops) > MOST:
        raise UseError("text.stops", found=repr(stops), most=MOST)
    for i, stop in enumerate(stops):
        if not isinstance(stop, str) or not 0 < len(stop) <= LONGEST:
            raise UseError("text.stop", index=i, found=repr(stop), longest=LONGEST)
