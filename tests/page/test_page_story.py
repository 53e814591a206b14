"""The story of a first visit in a real Chromium: eight scenes with the run's numbers, beside a picture that none of them covers."""

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

import pellucid
from browser import Tab, address_of, open_file, open_offline_tab, open_tab, serve_from_thread
from pellucid.html.live import live_page
from pellucid.messages import filled, phrases
from test_page_tour import expected

PROMPT = "The capital of France is"
STATIONS = {
    "cut": "ids", "embed": "embed", "ask": "query", "look": "pattern", "mix": "mix", "think": "neurons", "add": "out", "choose": "answer",
}  # fmt: skip
SHOWS = {
    "embed": ["embed"],
    "ask": ["layers.0.attn.q", "layers.0.attn.k", "layers.0.attn.v"],
    "look": ["layers.0.attn.pattern"],
    "mix": ["layers.0.attn.z"],
    "think": ["layers.0.ffn.neurons"],
    "add": ["layers.0.mid", "layers.0.ffn", "layers.0.out"],
}
# Of the lit frame and its scene's text: whether each is in the window, whether they part, and what lies over the frame.
SEEN = """() => {
  const frame = document.querySelector("figure.lit"), text = document.querySelector("section.lit .says");
  const a = frame.getBoundingClientRect(), b = text.getBoundingClientRect();
  const inside = box => box.top >= 0 && box.left >= 0 && box.bottom <= innerHeight + 1 && box.right <= innerWidth + 1;
  const apart = a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
  const points = [.1, .5, .9].flatMap(x => [.1, .5, .9].map(y => [a.left + x * a.width, a.top + y * a.height]));
  const over = points.filter(([x, y]) => !frame.contains(document.elementFromPoint(x, y))).length;
  const dim = [...document.querySelectorAll("figure:not(.lit)")].every(f => getComputedStyle(f).opacity < .4 && f.inert);
  return { frame: inside(a), text: inside(b), apart, over, dim };
}"""
WELL = {"frame": True, "text": True, "apart": True, "over": 0, "dim": True}


def begin(tab: Tab, lang: str = "en") -> None:
    """Open the page as on a first visit, and take the offer."""
    tab.go(lang, view="map", prompt=PROMPT)
    assert tab.page.inner_text("[data-story='first'] span") == filled(phrases(lang)["page.story.offer"], count=len(STATIONS))
    tab.page.click("[data-story='first'] .begin")
    scene(tab.page, "cut")


def scene(page: Page, name: str) -> dict[str, Any]:
    """Wait for a scene, and return the numbers that it says."""
    page.wait_for_selector(f".story[data-scene='{name}']")
    numbers: dict[str, Any] = json.loads(page.get_attribute(f"[data-tells='{name}'] .says", "data-said") or "{}")
    return numbers


@pytest.mark.parametrize(("lang", "width"), [("en", 1440), ("zh", 390)])
@pytest.mark.quick(2)
def test_scenes_say_the_runs_numbers_and_cover_nothing(browser: Browser, address: str, lang: str, width: int) -> None:
    numbers = expected(pellucid.trace(pellucid.load("pellucid/capitals", dtype="float32"), PROMPT, terms=True))
    words = phrases(lang)
    with open_tab(browser, address, viewport={"width": width, "height": 900}, reduced_motion="reduce") as tab:
        begin(tab, lang)
        for n, (name, key) in enumerate(STATIONS.items(), 1):
            assert scene(tab.page, name) == numbers[key]
            assert tab.page.inner_text(f"[data-tells='{name}'] .says") == filled(words[f"page.tour.{key}"], **numbers[key])
            assert words[f"page.story.{name}.tells"] in tab.page.inner_text(f"[data-tells='{name}']")
            tab.settle()
            assert tab.page.evaluate(SEEN) == WELL, name
            shown = tab.page.eval_on_selector_all("figure.lit [data-shows]", "all => all.map(e => e.dataset.shows)")
            drawn = tab.page.eval_on_selector_all("figure.lit [data-drawn]", "all => all.map(e => e.dataset.drawn)")
            assert shown == drawn == SHOWS.get(name, [])
            if n == 4:  # the check can fail
                tab.page.evaluate("document.querySelector('.stage').style.cssText = 'position: static'")
                assert tab.page.evaluate(SEEN) != WELL
                tab.page.evaluate("document.querySelector('.stage').style.cssText = ''")
            assert f"scene={n}" in address_of(tab.page)
            tab.page.click(f"[data-tells='{name}'] .next")
        tab.page.wait_for_selector("[data-map]")
        assert tab.page.locator(".story").count() == 0


def test_the_story_is_offered_once_and_told_by_keys(browser: Browser, address: str) -> None:
    with open_tab(browser, address, reduced_motion="reduce") as tab:
        begin(tab)
        page = tab.page
        for name in list(STATIONS)[1:4]:
            page.keyboard.press("ArrowRight")
            scene(page, name)
            expect(page.locator(f"#scene-{name}")).to_be_focused()
        page.keyboard.press("ArrowLeft")
        scene(page, "ask")
        page.click(".stage li:last-child button")
        scene(page, "choose")
        page.keyboard.press("Escape")
        page.wait_for_selector("[data-story='again']")
        assert page.locator("[data-story='first']").count() == 0
        page.go_back()  # the story is one entry of the history
        page.wait_for_selector(".story")
        page.click("header .touring")  # the tour takes its place
        page.wait_for_selector(".tour .says")
        assert page.locator(".story").count() == 0
        tab.go(view="map", prompt=PROMPT)  # a returning person
        page.wait_for_selector("[data-map]")
        assert page.locator(".story, [data-story='first']").count() == 0
        tab.go(scene=5, prompt=PROMPT)
        assert scene(page, "mix")["token"] == "·is"
        page.evaluate("location.hash = location.hash.replace('scene=5', 'scene=2')")  # an address typed over
        scene(page, "embed")
        expect(page.locator("[data-tells='embed']")).to_be_in_viewport(ratio=0.9)


def test_a_model_without_a_next_token_has_its_last_scene(tab: Tab) -> None:
    tab.go(model="pellucid/capitals-bert", scene=1)
    assert phrases("en")["page.story.choose.blank"] in tab.page.inner_text("[data-tells='choose']")


def test_the_story_needs_no_server(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(live_page(pellucid.load("pellucid/capitals")), encoding="utf-8")
    with open_offline_tab(browser, file) as tab:
        open_file(tab, file, ".story[data-scene='look'] [data-tells='look'] .says", scene=4, prompt=PROMPT)
        run = pellucid.trace(pellucid.load("pellucid/capitals", dtype="float32"), PROMPT, terms=True)
        assert scene(tab.page, "look") == expected(run)["pattern"]


def test_a_model_without_weights_has_its_controls_at_a_scene(browser: Browser) -> None:
    """There is no story to tell, so a switch that the server refuses can be taken off."""
    with serve_from_thread("gpt2") as address, open_tab(browser, address, refusals=(400,)) as tab:
        tab.page.goto(f"{address}&scene=2&with=norm%3Dnone")
        expect(tab.page.locator(".fault [role=alert]")).to_contain_text("gpt2")
        tab.page.click("[data-switches] li button", timeout=10_000)
        tab.page.wait_for_selector("main nav")
        assert tab.page.locator(".story").count() == 0
