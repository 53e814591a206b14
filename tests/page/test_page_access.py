"""Accessibility: axe finds nothing on any view in both themes, languages and widths; every control works by keys alone; motion stops.

PELLUCID_FULL=1 shows axe every place in both, and walks it by Tab in both widths; otherwise by turns in one.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from browser import Tab, address_of, open_tab

PROMPT = "The capital of France is"
AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
VIOLATIONS = """async () => (await axe.run({ resultTypes: ["violations"] })).violations
  .map(v => [v.id, v.nodes.slice(0, 3).map(n => n.html + " " + n.failureSummary)])"""
ZERO = json.dumps([["layers.1.attn.z", "0,:,:,:", "to", "0"]])
PLACES: dict[str, dict[str, Any]] = {
    "map": {"view": "map", "steps": 2, "step": 1, "why": "true"},
    "life": {"steps": 2, "step": 1},
    "tile": {"tensor": "layers.0.attn.scores", "cell": "0,1,1,1"},
    "attention": {"view": "attention"},
    "experts": {"view": "experts", "model": "pellucid/capitals-deepseek"},
    "next": {"view": "next", "sampling": "temperature:2"},
    "chat": {"view": "chat", "sampling": "temperature:2"},
    "cache": {"view": "cache", "steps": 3, "step": 1},
    "budget": {"view": "budget", "budget": "beside:gpt2-small device:h200"},
    "change": {"view": "change", "edits": ZERO},
    "tour": {"tour": 6},
    "story": {"scene": 4},
    "tokens": {"view": "tokens", "text": "The capital of 中国", "beside": "pellucid/capitals-bert"},
    "gallery": {"view": "exhibits"},
    "exhibit": {"view": "exhibits", "exhibit": "residual"},
}
WIDTHS = (1440, 390)
FULL = bool(os.environ.get("PELLUCID_FULL"))
# Over the places every mixture of theme, language and width; in a full run each place has both of each.
MIXED = [(name, i ^ t, i ^ (n & 1), i) for n, name in enumerate(PLACES) for t in (n >> 1 & 1,) for i in ((0, 1) if FULL else (n >> 2 & 1,))]
# Number all usable controls. Of the focused one: its number, if it is marked, and if it can be seen.
NUMBER = """() => {
  const all = [...document.querySelectorAll("a[href], button, input, textarea, select, summary, [tabindex='0']")];
  const shown = e => e.checkVisibility({ visibilityProperty: true }) && e.getClientRects().length > 0;
  const usable = all.filter(e => !e.disabled && shown(e) && !e.closest("[inert]"));
  usable.forEach((e, n) => { e.dataset.number = n; });
  return usable.length;
}"""
FOCUSED = """() => { const e = document.activeElement, b = e.getBoundingClientRect(), style = getComputedStyle(e);
  if (e === document.body) return null;
  const x = Math.min(innerWidth - 2, Math.max(1, b.left + Math.min(b.width / 2, 30)));
  const hit = [b.top + 3, b.top + b.height / 2, b.bottom - 3].some(y => {
    const at = document.elementFromPoint(x, y);
    return at && (e.contains(at) || (at.contains(e) && at.matches("label")));
  });
  const marked = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
  return [Number(e.dataset.number ?? -1), marked, hit, e.outerHTML.slice(0, 100)]; }"""


def free(focused: list[Any]) -> bool:
    """Whether what has the focus is marked, and under no other element."""
    _, marked, hit, html = focused
    return bool(marked and (hit or "hidden" in html))


def at_rest(page: Page) -> list[Any] | None:
    """Return what has the focus; if something lies over it, as it is within a second, when the page has scrolled to it."""
    focused: list[Any] | None = None
    for _ in range(10):
        focused = page.evaluate(FOCUSED)
        if focused is None or free(focused):
            break
        page.wait_for_timeout(100)
    return focused


def arrive(tab: Tab, name: str, dark: int, chinese: int, narrow: int) -> Page:
    tab.page.set_viewport_size({"width": WIDTHS[narrow], "height": 900})
    tab.page.emulate_media(color_scheme="dark" if dark else "light")
    tab.go(lang="zh" if chinese else "en", prompt=PROMPT, **PLACES[name])
    tab.settle()
    if name == "chat":
        converse(tab.page)
    return tab.page


def converse(page: Page) -> None:
    """Ask and ask again, choose a token of the answer, and open what was read: all that a chat shows."""
    page.click("[data-try]")
    page.click("[data-again]")
    page.wait_for_selector("[data-turn]")
    page.wait_for_selector("[data-facts]")
    page.click("[data-message]:last-child [data-token='1']")
    page.click("[data-read] summary")


def test_axe_finds_nothing(tab: Tab) -> None:
    if not AXE.is_file():
        pytest.skip("web/node_modules is not installed")
    assert {m[0] for m in MIXED} == {*PLACES} and len({m[1:] for m in MIXED}) == 8
    for factor in (1, 2, 3) if FULL else ():  # of each place
        assert {(m[0], m[factor]) for m in MIXED} == {(name, bit) for name in PLACES for bit in (0, 1)}
    script, complaints = AXE.read_text(encoding="utf-8"), []
    for mixed in MIXED:
        page = arrive(tab, *mixed)
        page.evaluate(script)
        complaints += [(mixed, violation) for violation in page.evaluate(VIOLATIONS)]
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            complaints.append((mixed, "wider than the window"))
    assert complaints == [], json.dumps(complaints, indent=1, ensure_ascii=False)


def test_axe_is_there_to_find(tab: Tab) -> None:
    if not AXE.is_file():
        pytest.skip("web/node_modules is not installed")
    page = arrive(tab, "life", 0, 0, 0)
    page.evaluate(AXE.read_text(encoding="utf-8"))
    page.evaluate("document.querySelector('main').insertAdjacentHTML('beforeend', '<img src=\"data:,\"><button></button>')")
    assert {v[0] for v in page.evaluate(VIOLATIONS)} >= {"image-alt", "button-name"}
    tab.problems.clear()


# Of the focused control: the pixels of it that its row, or the window, cuts off.
CUT = """() => {
  const e = document.activeElement, own = e.getBoundingClientRect();
  let [left, right] = [0, innerWidth];
  for (let p = e.parentElement; p; p = p.parentElement) if (getComputedStyle(p).overflowX !== "visible") {
    const box = p.getBoundingClientRect();
    [left, right] = [Math.max(left, box.left), Math.min(right, box.right)];
  }
  return Math.max(0, left - own.left, own.right - right);
}"""


def cut_off(tab: Tab) -> list[float]:
    """Return what is cut off of each example on a narrow screen, as Tab comes to it."""
    page = arrive(tab, "map", 0, 0, 1)
    page.focus(".examples button")
    cuts = []
    for _ in range(page.locator(".examples button").count() - 1):
        page.keyboard.press("Tab")
        tab.settle()
        assert page.evaluate("document.activeElement.matches('.examples button')")
        cuts.append(page.evaluate(CUT))
    return cuts


def test_what_takes_the_focus_is_seen_entirely(tab: Tab) -> None:
    """A browser takes a control of 32 visible pixels for visible. The mutant leaves it at that."""
    assert len(cuts := cut_off(tab)) >= 4 and max(cuts) < 1
    tab.page.add_init_script("addEventListener('focusin', e => e.stopImmediatePropagation(), true)")
    assert max(cut_off(tab)) > 10


@pytest.mark.parametrize(("name", "narrow"), [(name, bit) for n, name in enumerate(PLACES) for bit in (0, 1) if FULL or bit == n & 1])
@pytest.mark.quick(10)
def test_every_control_is_reached_by_tab(tab: Tab, name: str, narrow: int) -> None:
    """Tab reaches all controls, marks the focus, never under a floating element, and leaves the page at the end."""
    page = arrive(tab, name, 0, 0, narrow)
    page.evaluate("document.activeElement.blur()")
    count, seen, wrong = page.evaluate(NUMBER), set[int](), list[object]()
    for _ in range(2 * count + 20):
        page.keyboard.press("Tab")
        focused = at_rest(page)
        if focused is None:
            if len(seen) == count:
                break
            continue
        seen.add(focused[0])
        if not free(focused):
            wrong.append(focused)
    assert wrong == []
    assert [n for n in range(count) if n not in seen] == [], page.evaluate(
        "all => all.map(n => document.querySelector(`[data-number='${n}']`)?.outerHTML.slice(0, 120))",
        [n for n in range(count) if n not in seen],
    )


def press(page: Page, selector: str, *keys: str) -> None:
    page.focus(selector)
    for key in keys:
        page.keyboard.press(key)


def test_every_view_by_keys_alone(tab: Tab) -> None:
    page = arrive(tab, "life", 0, 0, 0)
    press(page, '[data-block="layers.2"]', "Enter")
    page.wait_for_selector('[data-path="layers.2.attn.q"]')
    press(page, '[data-path="layers.0.attn.q"]', "Enter")
    page.wait_for_selector("aside .frame")
    press(page, "aside .roles button >> nth=0", "Space")
    press(page, "aside header button", "Enter")
    page.wait_for_selector("aside", state="detached")
    assert page.evaluate("document.activeElement.dataset.path") == "layers.0.attn.q"  # back where it came from
    press(page, ".token >> nth=2", "Enter")
    assert "position=2" in address_of(page)

    arrive(tab, "attention", 0, 0, 0)
    press(page, ".heads button >> nth=6", "Enter")
    assert "head=2" in address_of(page) and "block=layers.1" in address_of(page)
    page.wait_for_selector("[data-weight]")
    press(page, "section .frame", "ArrowDown", "ArrowDown", "ArrowDown")
    assert "position=3" in address_of(page)

    arrive(tab, "experts", 0, 0, 0)
    press(page, ".loads button >> nth=1", "Enter")
    press(page, "section .frame", "ArrowDown", "ArrowRight")
    page.wait_for_selector("#reading b")

    arrive(tab, "next", 0, 0, 0)
    before = page.inner_text(".stages .formula")
    press(page, "[data-setting=temperature]", *["ArrowRight"] * 9)
    page.wait_for_function("b => document.querySelector('.stages .formula').innerText !== b", arg=before)

    arrive(tab, "cache", 0, 0, 0)
    press(page, ".scrub", "ArrowRight")
    page.wait_for_selector("tr.here[data-step='2']")
    press(page, "#edited", "Control+a", "x", "Enter")
    page.wait_for_selector(".positions .stale")
    press(page, ".play", "Space")
    assert page.get_attribute(".play", "aria-pressed") == "true"
    press(page, ".play", "Space")

    arrive(tab, "chat", 0, 0, 0)
    press(page, ".turns button:first-child", "Enter")
    press(page, "[data-token='0']", "ArrowRight", "Enter")
    press(page, "[data-message=user] [data-edit]", "Enter")
    page.wait_for_selector("[data-message=user] textarea:focus")
    page.keyboard.press("Escape")
    page.wait_for_selector("[data-message=user] textarea", state="detached")
    assert page.evaluate("document.activeElement.dataset.edit") == ""  # back where it came from
    press(page, "[data-open-step]", "Enter")
    page.wait_for_function("() => location.hash.includes('view=life') && location.hash.includes('step=1')")

    arrive(tab, "budget", 0, 0, 0)
    press(page, ".controls input[type=range]", "ArrowLeft")
    page.wait_for_function("() => location.hash.includes('context')")
    press(page, "td button >> nth=0", "Enter")
    page.wait_for_selector("td .why")
    press(page, ".map [data-part=attn]", "Enter")
    page.wait_for_selector(".map [data-part*='attn.']")

    arrive(tab, "change", 0, 0, 0)
    press(page, "#change-value", "Control+a", "2", "Tab", "Enter")
    page.wait_for_function("() => document.querySelectorAll('.edits li').length === 2")
    press(page, ".edits button >> nth=0", "Enter")
    page.wait_for_function("() => document.querySelectorAll('.edits li').length === 1")


def test_a_narrow_tile_is_all_there_is(tab: Tab) -> None:
    """A tile covers a narrow page: the focus goes into it, stays, and comes back."""
    page = arrive(tab, "life", 0, 0, 1)
    press(page, '[data-path="layers.0.attn_norm"]', "Enter")
    page.wait_for_selector("aside .frame")
    assert page.evaluate("document.activeElement.closest('aside') !== null")
    for _ in range(30):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement === document.body || document.activeElement.closest('aside') !== null")
    press(page, "aside header button", "Escape")
    page.wait_for_selector("aside", state="detached")
    assert page.evaluate("document.activeElement.dataset.path") == "layers.0.attn_norm"


MOVING = """() => [...document.querySelectorAll("*")].map(e => getComputedStyle(e)).filter(s => s.animationName !== "none"
  || s.scrollBehavior === "smooth" || s.transitionDuration.split(",").some(t => parseFloat(t) > 0)).length"""


def test_motion_is_left_out_where_it_is_not_wanted(browser: Browser, address: str) -> None:
    for wish, moves in (("reduce", False), ("no-preference", True)):
        with open_tab(browser, address, reduced_motion=wish) as tab:
            tab.go(prompt=PROMPT)
            tab.page.hover('[data-path="layers.0.attn.q"]')
            assert (tab.page.evaluate(MOVING) > 0) == moves
            if not moves:
                assert tab.page.evaluate("document.getAnimations().length") == 0
