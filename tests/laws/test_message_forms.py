"""A sentence that counts has a form for 1: "1 row", not "1 rows". Chinese needs none. A clause that has nothing to say is left out."""

import re
import string
from collections.abc import Iterator

import pytest

from pellucid import messages

# Nouns that a sentence counts. Behind a number each has a form for 1: "{count} {count:row|rows}".
NOUNS = (
    "adapters answers blocks bytes cells channels characters columns devices documents entries examples experts families files groups "
    "heads ids keys layers matrices models modules pages pairs parameters parts pieces positions products prompts queries questions "
    "ranks requests rows runs scenes scores shards stages steps strings summands templates tensors terms texts threads tokens turns "
    "users values weights"
)
QUALITIES = "added chat chosen dimmed embedding held-out mixed more neighbouring new proposed published query such"  # of what is counted
COUNTED = re.compile(rf"\{{(\w+)\}} (?:(?:{'|'.join(QUALITIES.split())}) )*({'|'.join(NOUNS.split())})\b")
# Placeholders behind which such a word is no noun, or the number is never 1: a name, an index, a rate, a limit of the program.
UNCOUNTED = (
    "command field file folder found id kind least limit longest model name number path place rate server theirs token piece first last"
)


def without_form(english: dict[str, str]) -> Iterator[str]:
    """Yield English sentences in which a count is followed by a plural alone. An exhibit's counts are its own, and are several."""
    for key, sentence in english.items():
        for name, noun in COUNTED.findall(sentence):
            if name not in UNCOUNTED.split() and not key.startswith(("exhibit.", "card.")):
                yield f"{key}: {{{name}}} {noun} has no form for 1"


def test_every_count_has_a_form_for_one() -> None:
    assert list(without_form(messages.phrases("en"))) == []


@pytest.mark.parametrize("sentence", ["all {rows} rows are computed", "{count} more blocks", "{prompts} prompts in one batch"])
def test_a_plural_alone_is_seen(sentence: str) -> None:
    assert list(without_form({"a": sentence}))
    assert not list(without_form({"exhibit.a": sentence}))


def test_a_sound_sentence_passes() -> None:
    assert not list(without_form({"a": "{rows} {rows:row is|rows are} computed, of at most {limit} rows; {model} rows"}))


def test_a_count_of_one_has_its_form() -> None:
    """1 in any type, and no other number; both languages have the same placeholders."""
    with messages.speaking("en"):
        assert (
            messages.filled("{n} {n:row is|rows are} left", n=1)
            == messages.filled("{n} {n:row is|rows are} left", n="1")
            == "1 row is left"
        )
        assert [messages.filled("{n:row|rows}", n=n) for n in (0, 2, 10, "1,001", "-")] == ["rows"] * 5
        assert messages.say("page.tensors", count=1) == "1 tensor" and messages.say("page.tensors", count=2) == "2 tensors"


@pytest.mark.parametrize("language", messages.LANGUAGES)
def test_a_clause_of_what_is_near_is_left_out_where_nothing_is(language: str) -> None:
    with messages.speaking(language):
        keys = [k for k, s in messages.phrases(language).items() if "{near}" in s and not k.startswith(("exhibit.", "adapter."))]
        for key in keys:
            names = {name for _, name, _, _ in string.Formatter().parse(messages.phrases(language)[key]) if name}
            values = {name: f"<{name}>" for name in names}
            full, bare = messages.say(key, **values), messages.say(key, **values | {"near": "-"})
            assert "<near>" in full and len(bare) < len(full) - len("<near>") and "近" not in bare, key
            assert all(f"<{name}>" in bare for name in names - {"near"}), key
