"""Queries, keys and values have a colour each, which one place gives: legible on every ground of the page, and apart for every eye."""

import math
import re
from itertools import combinations
from pathlib import Path

import pytest

WEB = Path(__file__).parents[2] / "web" / "src"
LETTERS = ("q", "k", "v")
GROUNDS = ("paper", "card", "wash")  # what their names stand on
CONTRAST, APART = 4.5, 0.13  # WCAG's for texts; a distance in OKLab, where black and white are 1 apart
# How an eye without one kind of cones sees linear red, green and blue (Machado, Oliveira and Fernandes 2009, severity 1).
EYES = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red cones": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "no green cones": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "no blue cones": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
Rgb = tuple[float, float, float]


def linear(colour: str) -> Rgb:
    """Return "#0b7285" as linear red, green and blue."""
    r, g, b = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return tuple(x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in (r, g, b))  # type: ignore[return-value]


def contrast(a: str, b: str) -> float:
    """Return WCAG's ratio of two colours."""
    light = sorted(0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (linear(a), linear(b)))
    return (light[1] + 0.05) / (light[0] + 0.05)


def seen_by(eye: str, colour: str) -> Rgb:
    """Return a colour in OKLab as an eye sees it."""
    own = linear(colour)
    r, g, b = (min(1.0, max(0.0, sum(x * y for x, y in zip(row, own, strict=True)))) for row in EYES[eye])
    long = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (1 / 3)
    middle = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (1 / 3)
    short = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short,
    )


def themes(css: str) -> list[dict[str, str]]:
    """Return the colours of the light theme and of the dark one."""
    return [dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", part)) for part in re.findall(r":root[^{]*\{([^}]*)\}", css)]


def faults(css: str) -> list[str]:
    """Return what is not legible, or looks like another letter to some eye."""
    wrong = []
    for name, colours in zip(("light", "dark"), themes(css), strict=True):
        for letter in LETTERS:
            wrong += [f"{name}: {letter} on {g}" for g in GROUNDS if contrast(colours[letter], colours[g]) < CONTRAST]
        for a, b in combinations(LETTERS, 2):
            wrong += [
                f"{name}: {a} and {b} with {eye}" for eye in EYES if math.dist(seen_by(eye, colours[a]), seen_by(eye, colours[b])) < APART
            ]
    return wrong


def test_each_letter_is_legible_and_apart() -> None:
    css = (WEB / "page.css").read_text(encoding="utf-8")
    assert len(themes(css)) == 2 and faults(css) == []


@pytest.mark.parametrize(
    ("letter", "colour", "fault"),
    [
        ("k", "#0f766e", "light: q and k with no red cones"),
        ("q", "#e07b39", "light: q on paper"),
        ("v", "#1d6fa5", "light: k and v with all cones"),
    ],
)
def test_a_colour_that_is_not_is_refused(letter: str, colour: str, fault: str) -> None:
    css = (WEB / "page.css").read_text(encoding="utf-8")
    assert fault in faults(re.sub(rf"(?<=--{letter}: )#[0-9a-f]{{6}}", colour, css, count=1))


def test_one_place_gives_them_and_one_knows_their_names() -> None:
    """No other file has these colours, or takes a path apart to know a letter."""
    colours = {c[letter] for c in themes((WEB / "page.css").read_text(encoding="utf-8")) for letter in LETTERS}
    known = re.compile(r"/\^\(?q|\"[qkv]\"\s*[:?]\s*\"?#")
    for file in sorted(WEB.rglob("*")):
        if file.suffix in (".svelte", ".ts", ".css"):
            text = file.read_text(encoding="utf-8")
            assert file.name == "page.css" or not any(c in text for c in colours), file
            assert file.name == "role.ts" or not known.search(text), file
