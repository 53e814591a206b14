"""A run that takes its time: the page tells how far it has come and what it has written, and ends it when it is asked to."""

import re
import threading
from collections.abc import Iterator

import pytest
import torch
from playwright.sync_api import Browser, Route, expect

import pellucid
from browser import Tab, open_tab, serve_from_thread
from pellucid.messages import phrases
from pellucid.runs.execute import Keeping

PROMPT = "The capital of Japan is"


class Paused:
    """Forwards that wait. at: the tensor of its step, behind a number of new tokens, at which a run waits until it is stopped or freed."""

    def __init__(self) -> None:
        self.at: tuple[int, int] | None = None
        self.free, self.stopped = threading.Event(), threading.Event()
        self.keep = Keeping.__call__

    def __call__(self, keeping: Keeping, x: torch.Tensor) -> object:
        kept = self.keep(keeping, x)
        while self.at == (len(keeping.progress.pieces), keeping.progress.tensors) and not self.free.wait(0.01):
            if keeping.stop.is_set():
                self.stopped.set()
                keeping.stop.check()
        return kept


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> Paused:
    own = Paused()
    monkeypatch.setattr(Keeping, "__call__", lambda keeping, x: own(keeping, x))
    return own


@pytest.fixture
def tab(browser: Browser, paused: Paused) -> Iterator[Tab]:
    with serve_from_thread("pellucid/capitals") as address, open_tab(browser, address) as opened:
        opened.go(prompt="The capital of France is", steps=3)
        yield opened


def test_a_run_tells_how_far_it_is_and_stops(tab: Tab, paused: Paused) -> None:
    page, model = tab.page, pellucid.load("pellucid/capitals", dtype="float32")
    new = pellucid.trace(model, PROMPT, 3, only="logits")
    paused.at = (0, 40)
    page.fill("#prompt", PROMPT)
    page.keyboard.press("Enter")
    page.wait_for_selector('.going[data-new="0"][data-tensors="40"]')
    line = page.inner_text(".going")
    assert f"Reading {len(new.ids)} tokens, 40 tensors so far" in line and " s" in line
    page.click(".going button")
    page.wait_for_selector("[role=alert]")
    assert paused.stopped.wait(10)  # the server computes no further
    assert "Stopped." in page.inner_text("[role=alert]") and page.locator(".going").count() == 0
    paused.at = (2, 7)
    page.press("#prompt", "Enter")
    page.wait_for_selector('.going[data-new="2"][data-tensors="7"]')
    assert "2 tokens written" in page.inner_text(".going")
    assert model.tokenizer is not None and page.inner_text(".going .text").strip() == model.tokenizer.decode(new.new[:2]).strip()
    paused.free.set()
    page.wait_for_selector(".going", state="detached")
    assert page.locator("[role=alert]").count() == 0 and PROMPT in page.input_value("#prompt")


def test_a_tab_tells_of_its_own_run_alone(browser: Browser, tab: Tab, paused: Paused) -> None:
    """Behind the run of another tab it says so, and its Stop ends nothing but its own."""
    with open_tab(browser, tab.address) as second:
        second.go(prompt="The capital of France is")
        paused.at = (0, 40)
        for one, prompt in ((tab, PROMPT), (second, "The capital of Italy is")):
            one.page.fill("#prompt", prompt)
            one.page.keyboard.press("Enter")
            one.page.wait_for_selector(f".going[data-other='{'true' if one is second else 'false'}']")
        tab.page.wait_for_selector('.going[data-tensors="40"][data-other="false"]')
        assert second.page.get_attribute(".going", "data-tensors") == "0"
        assert "Another run of this server comes first" in second.page.inner_text(".going")
        second.page.click(".going button")
        second.page.wait_for_selector("[role=alert]")
        assert not paused.stopped.is_set() and tab.page.locator(".going").count() == 1
        paused.free.set()
        tab.page.wait_for_selector(".going", state="detached")
        assert tab.page.locator("[role=alert]").count() == 0


def test_tensors_that_differ_are_counted_before_their_number_is_shown(browser: Browser) -> None:
    kept: list[Route] = []
    with serve_from_thread("pellucid/capitals") as address, open_tab(browser, address) as tab:
        tab.page.route("**/differences?*", lambda route: kept.append(route))
        tab.go(view="change", prompt=PROMPT, edits='[["layers.1.attn.z",":,:,2,:","to","0"]]')
        section = tab.page.locator("section:has(> .touched)")
        expect(section.get_by_role("status")).to_have_text(phrases("en")["page.computing"])
        assert section.locator("h2").count() == 0
        for route in kept:
            route.continue_()
        expect(section.locator("h2")).to_have_attribute("data-all", re.compile("^[1-9]"))
        assert section.get_by_role("status").count() == 0
