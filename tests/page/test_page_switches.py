"""Switches beside the prompt: what the page shows under one is the variant's, and without it the model's as a fresh load shows it."""

import re
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from playwright.sync_api import Browser, Route, expect

import pellucid
from browser import READY, Tab, address_of, download_page, open_file, open_offline_tab
from pellucid.api.variant import varied
from pellucid.messages import phrases

CAPITALS, PROMPT = "pellucid/capitals", "The capital of France is"
NEW = ".token.new .id"


@pytest.fixture(scope="module")
def plain() -> pellucid.Model:
    return pellucid.load(CAPITALS, dtype="float32")


def switch(tab: Tab, path: str, value: str) -> None:
    """Switch a field by keys alone, as the control beside the prompt takes it."""
    tab.page.focus("#switch-add")
    tab.page.keyboard.press("Enter")
    tab.page.focus("#switch-field")
    tab.page.keyboard.type(path)
    tab.page.wait_for_selector("#switch-form [role=status]")
    tab.page.focus("#switch-value")
    if tab.page.evaluate("document.activeElement.tagName") == "SELECT":
        tab.page.select_option("#switch-value", value)
    else:
        tab.page.keyboard.type(value)
    tab.page.focus("#switch-form button")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector("#switch-form", state="detached")
    tab.page.wait_for_function(READY)


def expected(model: pellucid.Model) -> tuple[int, float]:
    """Return the new token, and its logit, as Python has them."""
    run = pellucid.trace(model, PROMPT)
    return run.new[0], float(run["logits"].value[0, -1, run.new[0]])


def test_an_answer_under_switches_is_the_variants(tab: Tab, plain: pellucid.Model) -> None:
    for lang in ("en", "zh"):
        tab.go(lang=lang, model=CAPITALS, prompt=PROMPT)
        fresh = int(tab.page.inner_text(NEW))
        switch(tab, "norm", "none")
        switch(tab, "layers.*.attn.scale", "1")
        chips = tab.page.locator("[data-switches] li")
        expect(chips).to_have_text([re.compile("norm = none"), re.compile(r"layers\.\*\.attn\.scale = 1")])
        words = phrases(lang)["page.with.differs"].replace("{model}", CAPITALS)
        for view in ("life", "attention", "next", "cache", "budget", "change"):
            tab.page.click(f"nav a[href$='view={view}']")
            expect(tab.page.locator("[data-switches] p")).to_have_text(words)
        given = parse_qs(tab.page.evaluate("location.hash.slice(1)"))["with"][0].split("; ")
        token, logit = expected(varied(plain, given))
        assert int(tab.page.inner_text(NEW)) == token != fresh
        tab.page.wait_for_selector(".picks[data-before]")
        picks = tab.page.locator(".picks").first
        assert (picks.get_attribute("data-before"), picks.get_attribute("data-after")) == (str(fresh), str(token))
        shown = tab.page.get_attribute(f"tr[data-id='{token}'] [data-logit]", "data-logit")
        assert float(shown or "nan") == pytest.approx(logit, rel=1e-6)
        for name in ("norm", "layers"):
            button = phrases(lang)["page.with.off"].split("{")[0]
            tab.page.click(f"[data-switches] button[aria-label^='{button}{name}']")
            tab.page.wait_for_function(READY)
        expect(chips).to_have_count(0)
        assert int(tab.page.inner_text(NEW)) == fresh and "with=" not in address_of(tab.page)


def test_a_link_keeps_the_switches(tab: Tab, plain: pellucid.Model) -> None:
    token, logit = expected(varied(plain, ["norm=none"]))
    tab.go(model=CAPITALS, prompt=PROMPT, **{"with": " norm = none ;"})
    assert int(tab.page.inner_text(NEW)) == token
    number = tab.open_cell("logits", (0, 4, token), model=CAPITALS, prompt=PROMPT, **{"with": " norm = none ;"}).value
    assert float(number) == pytest.approx(logit, rel=1e-6)


def test_a_refused_switch_shows_the_servers_line(tab: Tab) -> None:
    tab.refusals = {400}
    tab.go(model=CAPITALS, prompt=PROMPT)
    before = tab.page.inner_text(NEW)
    switch(tab, "layers.*.attn.qk_norm", "on")
    expect(tab.page.locator(".fault [role=alert]")).to_contain_text("q_norm")
    tab.page.click(".fault .still button")
    expect(tab.page.locator(".fault")).to_have_count(0)
    expect(tab.page.locator("[data-switches] li")).to_have_count(0)
    assert tab.page.inner_text(NEW) == before


def test_a_hostile_switch_is_only_text(tab: Tab) -> None:
    tab.refusals = {400}
    tab.go(model=CAPITALS, prompt=PROMPT)
    tab.page.evaluate("text => { location.hash += `&with=${encodeURIComponent(text)}`; }", "<img src=x onerror=alert(1)>=\u202e1")
    expect(tab.page.locator("[data-switches] li")).to_contain_text("<img src = x onerror=alert(1)>")
    expect(tab.page.locator("[data-switches] li")).to_contain_text("\\u202e")
    assert tab.page.locator("img").count() == 0


def test_a_saved_file_names_the_switches(browser: Browser, address: str, tmp_path: Path, plain: pellucid.Model) -> None:
    file = download_page(browser, address, tmp_path, model=CAPITALS, prompt=PROMPT, **{"with": "norm=none"})
    with open_offline_tab(browser, file) as tab:
        open_file(tab, file, NEW)
        expect(tab.page.locator("[data-switches] li")).to_have_text("norm = none")
        assert int(tab.page.inner_text(NEW)) == expected(varied(plain, ["norm=none"]))[0]
        assert tab.page.locator("#switch-add, [data-switches] button").count() == 0


def test_a_page_that_ignores_switches_is_found_out(tab: Tab, plain: pellucid.Model) -> None:
    """The mutant: the page asks for its run without them."""

    def without(route: Route) -> None:
        body = route.request.post_data_json
        route.continue_(post_data={k: v for k, v in body.items() if k != "with"})

    tab.page.route("**/api/runs?*", without)
    tab.go(model=CAPITALS, prompt=PROMPT, **{"with": "norm=none"})
    assert int(tab.page.inner_text(NEW)) != expected(varied(plain, ["norm=none"]))[0]
    expect(tab.page.locator("[data-switches] li")).to_have_count(0)  # and the page tells what the server ran
