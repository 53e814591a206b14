"""Streamed text is the full text cut at the first stop string, whatever the borders of tokens, and never half a character."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.engine import text as engine
from pellucid.engine.text import LONGEST, MOST, Text, check_stops
from pellucid.errors import UseError
from pellucid.tokenizer.pieces import Stream
from tiny import swapped
from vocabularies import KINDS, TEXTS, ours

LETTERS = "abc停止🎉é\u0301👩\u200d "
STOPS = [
    ("ab", "abc", "b"),
    ("abc", "c"),
    ("abca", "c"),
    ("aab",),
    ("停止", "止🎉"),
    ("🎉",),
    ("aa", "aaa"),
    ("abcabd", "cab"),
    ("\u0301",),
    (),
]


def cut(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """Return the text before the first complete stop string, the longest of several, and that string."""
    for end in range(1, len(text) + 1):
        if met := [stop for stop in stops if text[:end].endswith(stop)]:
            stop = max(met, key=len)
            return text[: end - len(stop)], stop
    return text, None


def pieces(raw: bytes, draw: random.Random) -> list[bytes]:
    """Return the same bytes in random parts, some of them empty."""
    borders = sorted(draw.choices(range(len(raw) + 1), k=draw.randrange(len(raw) + 3)))
    return [raw[a:b] for a, b in zip([0, *borders], [*borders, len(raw)], strict=True)]


def streamed(parts: Sequence[bytes], stops: Sequence[str]) -> tuple[list[str], Text]:
    """Return the parts that every token and the end emit, and the stream."""
    text = Text(Stream(lambda id, first: parts[id], 0), stops)
    return [*(text.feed(id) for id in range(len(parts))), text.end()], text


def fault(raw: bytes, stops: Sequence[str], seed: int) -> str:
    """Return the fault in the stream of these bytes, or ""."""
    parts = pieces(raw, random.Random(seed))
    full, stop = cut(raw.decode("utf-8", "replace"), stops)
    out, text = streamed(parts, stops)
    if "".join(out) != full or text.shown != full or text.stop != stop:
        return f"{''.join(out)!r} and {text.stop!r}, not {full!r} and {stop!r}, of {parts}"
    for n in range(len(out)):
        if cut("".join(out[:n]), stops)[1] is not None:
            return "a stop string came out"
        if raw.decode("utf-8", "ignore").encode() == raw and "\ufffd" in "".join(out[:n]):
            return "half a character came out"
    return ""


@settings(max_examples=400, deadline=None)
@given(st.text(LETTERS, max_size=24), st.sampled_from(STOPS), st.integers(0, 2**32))
def test_stream_is_the_whole_cut_at_the_first_stop(text: str, stops: Sequence[str], seed: int) -> None:
    assert fault(text.encode(), stops, seed) == ""


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=12), st.lists(st.text("a\ufffdé", min_size=1, max_size=3), max_size=3), st.integers(0, 2**32))
def test_bytes_that_are_no_text(raw: bytes, stops: list[str], seed: int) -> None:
    """Half a character at the end and a stop string of the replacement character are handled."""
    assert fault(raw, stops, seed) == ""


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_vocabulary(kind: str) -> None:
    """Streams of real texts and of random tokens equal what the tokenizer decodes at once."""
    made, draw = ours(kind), random.Random(5)
    for case in range(60):
        ids = made.encode(TEXTS[case % 3]) if case < 6 else [draw.randrange(made.size) for _ in range(12)]
        plain = made.decode(ids, skip_special=True)
        at = draw.randrange(len(plain)) if plain else 0
        stops = [plain[at : at + n] for n in (1, 3) if plain[at : at + n]]
        text = Text(made.stream(skip_special=True), stops)
        out = "".join([*map(text.feed, ids), text.end()])
        assert (out, text.stop) == cut(plain, stops) and (text.stop is not None) == bool(stops)


def test_text_comes_as_soon_as_it_can() -> None:
    """Only text that may still become a stop string is withheld."""
    assert streamed([b"xa", b"c", b"b", b"cz", b"ya", b"b"], ["ab", "bcd"])[0] == ["x", "ac", "", "bcz", "y", "", ""]
    assert streamed([b"a", b"a", b"\xe4\xbd", b"\xa0"], ["aab"])[0] == ["", "", "", "aa你", ""]
    assert streamed([b"abc", b"d"], ["bc"])[0] == ["a", "", ""]
    assert streamed([b"ab"], ["abc"])[0] == ["", "ab"]


plain = Text.release


def shown(self: Text, piece: str) -> str:
    """Emit all text at once."""
    out = plain(self, piece) + self.withheld
    self.shown, self.withheld = self.shown + self.withheld, ""
    return out


def forgetful(self: Text, piece: str) -> str:
    """Emit withheld text without looking at it again."""
    out, self.withheld = self.withheld, ""
    self.shown += out
    return out + plain(self, piece)


def earliest(self: Text, piece: str) -> str:
    """Cut at the stop string that begins first."""
    return picked(self, piece, lambda end, at, stop: (at, end))


def shortest(self: Text, piece: str) -> str:
    """Cut at the shortest of several stop strings that end together."""
    return picked(self, piece, lambda end, at, stop: (end, -at))


def picked(self: Text, piece: str, key: Callable[[int, int, str], Any]) -> str:
    text = self.withheld + piece
    if met := [(at + len(stop), at, stop) for stop in self.stops if (at := text.find(stop)) >= 0]:
        _, end, self.stop = min(met, key=lambda m: key(*m))
        self.shown, self.withheld = self.shown + text[:end], ""
        return text[:end]
    return plain(self, piece)


@pytest.mark.parametrize("mutant", [shown, forgetful, earliest, shortest])
def test_mutants_are_seen(mutant: Callable[[Text, str], str]) -> None:
    draw, faults = random.Random(3), 0
    sets = [stops for stops in STOPS if stops and set("".join(stops)) <= set("abc")]
    with swapped(Text, "release", mutant):
        for seed in range(300):
            text = "".join(draw.choices("abc", k=12))
            faults += fault(text.encode(), draw.choice(sets), seed) != ""
    assert faults


@pytest.mark.parametrize("stops", [[""], ["a"] * (MOST + 1), ["a" * (LONGEST + 1)], ["a", 5], "END", [None]])
def test_stop_strings_are_few_and_short(stops: Any) -> None:
    with pytest.raises(UseError) as wrong:
        Text(Stream(lambda id, first: b"", 0), stops)
    assert "stop" in str(wrong.value) and "\n" not in str(wrong.value)
    check_stops(["a" * LONGEST] * MOST)
    assert engine.check_stops is check_stops
