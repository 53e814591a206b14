"""The cases that stand for all have every part and setting of any case; a new family that brings one is named with what it brings."""

from covering import COVER, PLAIN_COVER, missing
from kinds import CASES


def test_the_cover_has_every_part_and_setting() -> None:
    assert missing(COVER, CASES) == {}, "add these to the lists of covering.py"
    plain = [(family, quirk) for family, quirk in CASES if quirk == "plain"]
    assert missing([(family, "plain") for family in PLAIN_COVER], plain) == {}, "add these to the lists of covering.py"


def test_a_cover_without_a_case_is_seen() -> None:
    """A clamped gate is gpt-oss's alone, and an indexer that turns pairs side by side GLM-5's."""
    for family, feature in (("gpt_oss", ("Moe.act", "clamped")), ("glm_moe_dsa", ("Index.side_by_side", True))):
        adding = missing([case for case in COVER if case[0] != family], CASES)
        assert any(feature in features for features in adding.values())
