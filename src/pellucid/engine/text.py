"""The text of one request as it may be shown: never half a character, and nothing of a stop string.

    stops "ab", "bcd"     tokens "xa" "c" "b" "cz" "ya" "b"     shown "x" "ac" "" "bcz" "y" ""

The stop string that is whole first ends the text, of several that end there the longest: so the cut does not depend on where tokens part.
"""

from collections.abc import Sequence

from pellucid.errors import UseError
from pellucid.tokenizer.pieces import Stream

MOST, LONGEST = 16, 256  # stop strings of a request, and characters of one


class Text:
    """What a stream of tokens writes, up to the first stop string.

    shown: all that was let out, so that it ends where the text is cut.  stop: the stop string that was met, None while none was.
    """

    def __init__(self, stream: Stream, stops: Sequence[str] = ()) -> None:
        check_stops(stops)
        self.stream, self.stops = stream, tuple(stops)
        self.stop: str | None = None
        self.shown, self.held = "", ""

    def feed(self, id: int) -> str:
        """The text that may be shown now that this token has come; nothing more once a stop string was met."""
        return "" if self.stop is not None else self.let(self.stream.feed(id))

    def end(self) -> str:
        """What was held back; U+FFFD for a character that never became whole."""
        if self.stop is not None:
            return ""
        out = self.let(self.stream.end())
        rest, self.held = self.held, ""
        self.shown += rest
        return out + rest

    def let(self, piece: str) -> str:
        """What goes out when this much more has been written: all before a stop string, or before what one may still begin with."""
        text = self.held + piece
        met = [(at + len(stop), at, stop) for stop in self.stops if (at := text.find(stop)) >= 0]
        if met:
            _, cut, self.stop = min(met)
            out, self.held = text[:cut], ""
        else:
            begun = (n for stop in self.stops for n in range(1, min(len(stop), len(text) + 1)) if text.endswith(stop[:n]))
            cut = len(text) - max(begun, default=0)
            out, self.held = text[:cut], text[cut:]
        self.shown += out
        return out


def check_stops(stops: Sequence[str]) -> None:
    """A few strings, none of them empty or endless."""
    if isinstance(stops, str) or len(stops) > MOST:
        raise UseError("text.stops", found=repr(stops), most=MOST)
    for i, stop in enumerate(stops):
        if not isinstance(stop, str) or not 0 < len(stop) <= LONGEST:
            raise UseError("text.stop", index=i, found=repr(stop), longest=LONGEST)
