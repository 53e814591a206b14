"""The field of the prompt: it keeps line breaks and grows with them, at every width and from right to left; Enter runs it."""

import pytest

from browser import Tab

LINES = "The capital\nof France\nis"


@pytest.mark.parametrize("width", [390, 1024, 1440])
def test_line_breaks_stay_when_a_prompt_is_edited(tab: Tab, width: int) -> None:
    page = tab.page
    page.set_viewport_size({"width": width, "height": 800})
    tab.go(prompt="The capital of France is")
    one = page.locator("#prompt").bounding_box()
    tab.go(prompt=LINES)
    three = page.locator("#prompt").bounding_box()
    assert one and three and three["height"] > 1.5 * one["height"] and page.input_value("#prompt") == LINES
    page.focus("#prompt")
    page.press("#prompt", "Control+End")
    page.keyboard.type(" a")
    page.press("#prompt", "Shift+Enter")
    page.keyboard.type("b")
    assert page.input_value("#prompt") == LINES + " a\nb" and "prompt=The+capital%0Aof+France%0Ais&" in page.url + "&"
    page.press("#prompt", "Enter")
    page.wait_for_function("location.hash.includes('France%0Ais+a%0Ab')")
    tab.settle()
    assert page.input_value("#prompt") == LINES + " a\nb" and page.get_by_text("\\n", exact=True).count() >= 3
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_other_prompts_keep_their_lines_too(tab: Tab) -> None:
    """The prompt that is compared, the one whose cells are put in, and the one whose cache is looked at."""
    page = tab.page
    tab.go(view="change", prompt=LINES)
    for field in ("#against", "#sweep-clean"):
        page.fill(field, LINES)
        page.press(field, "Shift+Enter")
        page.keyboard.type("b")
        assert page.input_value(field).count("\n") == 3
    tab.go(view="cache", prompt=LINES)
    assert page.input_value("#edited") == LINES


def test_a_prompt_from_right_to_left_stands_right(tab: Tab) -> None:
    tab.go(prompt="مرحبا\nبالعالم")
    assert tab.page.evaluate("getComputedStyle(document.querySelector('#prompt')).direction") == "rtl"


def test_encoders_without_a_blank_have_no_likeliest_tokens(tab: Tab) -> None:
    """Two prompts without a blank: a sentence in place of an empty table; with one blank the table has its tokens."""
    page = tab.page
    tab.go(view="change", model="pellucid/capitals-bert", prompt="the capital of France is Paris", against="the capital of Japan is Tokyo")
    page.wait_for_selector("[data-unanswered]")
    assert page.locator(".against table tbody tr[data-id]").count() == 0 and page.locator(".against .picks").count() == 0
    tab.go(view="change", model="pellucid/capitals-bert", prompt="the capital of France is Paris", against="the capital of Japan is [MASK]")
    page.wait_for_selector(".against tr[data-id]")
    assert page.locator("[data-unanswered]").count() == 0
