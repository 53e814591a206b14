"""Text that knows its origin: what the template wrote is in capitals here, so every character tells whether its mask is right."""

import random
from typing import Any

import pytest

from pellucid.tokenizer.marked_text import Written, joined, spans, wrote


def mixed(draw: random.Random, most: int = 12) -> Written:
    """A text of both: capitals, blanks and bars of the template, small letters of a message."""
    parts = [wrote(draw.choice(("A", "BA", "|X", "X"))) if draw.random() < 0.5 else draw.choice(("a", "ba", "x", "")) for _ in range(most)]
    return joined(parts)


def right(text: str) -> bool:
    """Whether nothing of a message passes for the template's, and nothing of the template's is lost."""
    own = {i for start, stop in spans(text) for i in range(start, stop)}
    return own == {i for i, c in enumerate(text) if c in "ABX|"}


CARRIED: dict[str, Any] = {
    "add": lambda t, u, n: t + u,
    "add to a message": lambda t, u, n: "ab" + t + "x",
    "cut": lambda t, u, n: t[n:-1],
    "cut backwards": lambda t, u, n: t[::-2],
    "one": lambda t, u, n: t[n] + t[-1],
    "strip": lambda t, u, n: t.strip("AaX"),
    "lstrip": lambda t, u, n: t.lstrip("A|b"),
    "rstrip": lambda t, u, n: t.rstrip("XxAa"),
    "strip all": lambda t, u, n: t.strip("ABXabx|"),
    "strip blanks": lambda t, u, n: t.strip(),
    "join": lambda t, u, n: t[:2].join([u, "a", t]),
    "join nothing": lambda t, u, n: t.join([]),
    "replace": lambda t, u, n: t.replace("A", u),
    "replace by a message": lambda t, u, n: t.replace("X", "ab"),
    "replace some": lambda t, u, n: t.replace("a", wrote("BB"), n),
    "replace nothing": lambda t, u, n: t.replace("zz", "x"),
    "str": lambda t, u, n: str(t),
    "itself put in": lambda t, u, n: "%s" % t if isinstance(t, Written) else t,  # noqa: UP031
}


@pytest.mark.parametrize("how", CARRIED)
def test_origin_is_carried(how: str) -> None:
    draw = random.Random(1)
    for _ in range(300):
        t, u, n = mixed(draw) + wrote("A") + "a", mixed(draw, 3), draw.randrange(2)
        result = CARRIED[how](t, u, n)
        plain = CARRIED[how](str.__str__(t), str.__str__(u), n)
        assert type(result) is Written and result == plain and hash(result) == hash(plain)
        assert right(result), (how, t, u, result, spans(result))


LOST: dict[str, Any] = {
    "upper": lambda t: t.upper(),
    "lower": lambda t: t.lower(),
    "format": lambda t: f"{t}{t}",
    "per cent": lambda t: wrote("|%s") % t,
    "times": lambda t: t * 2,
    "letters": lambda t: "".join(t),
    "split": lambda t: t.split("a")[0],
    "made anew": lambda t: Written(t),
    "title": lambda t: t.title(),
    "center": lambda t: t.center(99),
    "replace of nothing": lambda t: t.replace("", "A"),
    "removeprefix": lambda t: t.removeprefix("A"),
}


@pytest.mark.parametrize("how", LOST)
def test_lost_origin_is_nobodys(how: str) -> None:
    draw = random.Random(2)
    assert all(spans(LOST[how](wrote("A") + mixed(draw))) == [] for _ in range(100))


def test_the_check_sees_wrong_masks() -> None:
    """Mutants: everything its own, nothing its own, one character off."""
    text = wrote("AB") + "ab" + wrote("X")
    assert right(text) and spans(text) == [(0, 2), (4, 5)]
    assert not right(wrote(str.__str__(text))) and not right(Written(text)) and not right(Written(text, b"\0" + text._mask[:-1]))
    with pytest.raises(TypeError):
        text + 1
    with pytest.raises(TypeError):
        1 + text  # type: ignore[operator]
