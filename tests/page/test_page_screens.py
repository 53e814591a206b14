"""The law of screens: on a projector, 1440 by 900, an exhibit is one screen in both languages; on a phone it scrolls down."""

import json

import pytest

from browser import Tab
from gallery import altered, document, show
from pellucid.exhibits import find, names


def below(tab: Tab) -> int:
    """Return the pixels of the page that lie below a projector's window."""
    tab.settle()
    return int(tab.page.evaluate("document.documentElement.scrollHeight - innerHeight"))


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("name", list(names()))
@pytest.mark.quick(20)
def test_it_is_one_screen(tab: Tab, name: str, lang: str) -> None:
    """On a projector nothing of an exhibit lies below the window: all its sentences and pictures are there at once."""
    tab.page.set_viewport_size({"width": 1440, "height": 900})
    show(tab, name, lang)
    panels = tab.page.locator("[data-panel]")
    assert below(tab) == 0 and panels.count() == len(document(name, lang)["panels"]) and all(p.is_visible() for p in panels.all())


@pytest.mark.parametrize("year", next(c for c in find("releases").controls if c.name == "year").options)
@pytest.mark.quick(4)
def test_every_year_is_one_screen(tab: Tab, year: str) -> None:
    tab.page.set_viewport_size({"width": 1440, "height": 900})
    show(tab, "releases", "en", controls=json.dumps({"year": year}))
    tables = tab.page.locator("[data-panel=table] table")
    assert below(tab) == 0 and tables.evaluate_all(
        "all => all.every(t => t.parentElement.scrollHeight <= t.parentElement.clientHeight + 1)"
    )


def test_a_second_screen_is_seen(tab: Tab) -> None:
    """The mutants: the panels of one exhibit twice, and a claim that is too long for its column."""
    tab.page.set_viewport_size({"width": 1440, "height": 900})
    show(tab, "norms", "en")
    assert below(tab) == 0
    altered(tab, lambda given: given.update(panels=[*given["panels"], *document("heads", "en")["panels"]]))
    show(tab, "residual", "en")
    assert below(tab) > 0
    tab.page.unroute("**/api/exhibits/*")
    altered(tab, lambda given: given["claims"][0].update(text="one more word " * 200))
    show(tab, "order", "en")
    assert below(tab) > 0


@pytest.mark.parametrize("name", ["heads", "patterns", "latent"])
def test_a_phone_scrolls_down_and_not_aside(tab: Tab, name: str) -> None:
    tab.page.set_viewport_size({"width": 390, "height": 844})
    show(tab, name, "en")
    panels = tab.page.locator("[data-panel]")
    assert all(p.is_visible() for p in panels.all()) and below(tab) > 0
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
