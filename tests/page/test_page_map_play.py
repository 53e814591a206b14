"""The map plays: a run's marks come in the order in which they were computed, by themselves once and step by step by hand."""

import re
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page, expect

import pellucid
from browser import Tab, open_tab
from pellucid.documents.number import number
from pellucid.documents.run_map import FAINT
from pellucid.messages import phrases
from pellucid.tracing import Trace

PROMPTS = {
    "capitals": "The capital of France is",
    "capitals-t5": "The capital of France is Paris.",
    "capitals-bert": "The capital of France is [MASK].",
}
PROMPT = PROMPTS["capitals"]
# Notes which marks wait and come, in order, and how long each movement lasts.
NOTED = """(() => {
  window.__came = []; window.__times = [];
  const name = ({ dataset: d }) => d.edge ?? d.crossed ?? d.cell ?? d.feed ?? d.start ?? d.word ?? "";
  new MutationObserver(all => all.forEach(({ target }) => {
    const flow = target.closest("[data-flow]")?.dataset.flow;
    if (flow && !target.hasAttribute("data-waits")) window.__came.push([flow, name(target)]);
  })).observe(document, { subtree: true, attributeFilter: ["data-waits"] });
  const own = Element.prototype.animate;
  Element.prototype.animate = function (frames, how) { window.__times.push(how.duration); return own.call(this, frames, how); };
})()"""


def computed(trace: Trace) -> list[str]:
    """Return the map's steps in the order of a run's first forward. A block has ribbons if a share of its pattern is strong enough."""
    stacks, order = list[str](), list[str]()
    for s in trace:
        match = re.fullmatch(r"((?:encoder\.|decoder\.)?)layers\.(\d+)\.(\w+\.pattern|out)", s.path)
        if match is None or s.step > 0:
            continue
        stack, block, what = match.groups()
        if stack not in stacks:
            stacks.append(stack)
            order.append(f"start,{len(stacks) - 1}")
        step = f"{'adds' if what == 'out' else 'reads'},{len(stacks) - 1},{block}"
        if what != "out":
            shares = s.value[0].double().mean(0)
            others = shares - torch.diag(shares.diagonal()) if what == "attn.pattern" else shares
            if float(others.max()) < FAINT:
                continue
        if step not in order:
            order.append(step)
    return [*order, "answer"]


def came(page: Page) -> list[str]:
    """Return the steps that have come, each once, in order."""
    return list(dict.fromkeys(flow for flow, _ in page.evaluate("window.__came")))


@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.quick(4)
def test_a_run_comes_once_in_the_order_of_its_computation(browser: Browser, address: str, name: str) -> None:
    trace = pellucid.trace(pellucid.load(f"pellucid/{name}", dtype="float32"), PROMPTS[name])
    with open_tab(browser, address) as tab:
        tab.page.add_init_script(NOTED)
        tab.go(view="map", model=f"pellucid/{name}", prompt=PROMPTS[name])
        tab.page.wait_for_selector("[data-map] [data-norm]")
        tab.settle()
        order = computed(trace)
        assert came(tab.page) == order != [*order[:1], *order[:0:-1]]
        assert tab.page.locator("[data-waits]").count() == 0
        assert all(150 <= ms <= 250 for ms in tab.page.evaluate("window.__times"))
        before = len(tab.page.evaluate("window.__came"))
        tab.page.click("nav a[href*='view=next']")
        tab.page.click("nav a[href*='view=map']")
        tab.page.wait_for_selector("[data-map] [data-norm]")
        tab.settle()
        assert len(tab.page.evaluate("window.__came")) == before  # it has come already


def test_one_more_token_brings_its_own_row(browser: Browser, address: str) -> None:
    """A later step computes one row: the others stay where they are."""
    with open_tab(browser, address) as tab:
        tab.page.add_init_script(NOTED)
        tab.go(view="map", prompt=PROMPT)
        tab.page.wait_for_selector("[data-map] [data-norm]")
        tab.settle()
        tab.page.evaluate("window.__came = []")
        tab.page.click(".generate .strong")
        expect(tab.page.locator("svg[data-map]")).to_have_attribute("data-step", "1")
        tab.settle()
        every = tab.page.evaluate("window.__came")
        marks = [(flow.split(",")[0], [int(n) for n in mark.split(",")]) for flow, mark in every if "," in mark]
        assert {flow for flow, _ in marks} == {"start", "reads", "adds"}
        assert {mark[2 if flow == "reads" else -1] for flow, mark in marks} == {5}
        assert sum(flow == "adds" and len(mark) == 3 for flow, mark in marks) == 8  # a band and a swelling in each of four blocks


def test_nothing_comes_under_reduced_motion(browser: Browser, address: str) -> None:
    with open_tab(browser, address, reduced_motion="reduce") as tab:
        tab.page.add_init_script(NOTED)
        tab.go(view="map", prompt=PROMPT)
        tab.page.wait_for_selector("[data-map] [data-norm]")
        tab.settle()
        assert tab.page.evaluate("[window.__came, window.__times]") == [[], []]


def seen(trace: Trace, path: str) -> Any:
    return trace[path].value[0].double()


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_steps_by_hand_say_the_runs_numbers(browser: Browser, address: str, lang: str) -> None:
    """By the keys, forth and back. What comes later waits, and a sentence has the numbers of the answer's row."""
    trace = pellucid.trace(pellucid.load("pellucid/capitals", dtype="float32"), PROMPT)
    order = computed(trace)
    with open_tab(browser, address, reduced_motion="reduce") as tab:
        page = tab.page
        tab.go(lang, view="map", prompt=PROMPT)
        page.wait_for_selector("[data-map] [data-norm]")
        page.focus("[data-walk-play]")
        for i, step in enumerate(order):
            page.keyboard.press("ArrowRight")
            page.wait_for_selector(f"[data-walk='{step}']")
            waiting = page.eval_on_selector_all("[data-waits]", "all => [...new Set(all.map(e => e.dataset.flow))]")
            assert sorted(waiting) == sorted(order[i + 1 :])
            kind, *at = step.split(",")
            text, block = page.inner_text("[data-walk]"), at[-1] if at else ""
            if kind == "start":
                numbers = [number(float(seen(trace, trace["layers.0.mid"].inputs[0])[-1].norm()))]
            elif kind == "reads":
                shares = seen(trace, f"layers.{block}.attn.pattern").mean(0)[-1, :-1]
                numbers = [f"{number(100 * float(shares.max()))}%"] if float(shares.max()) >= FAINT else [f"{number(100 * FAINT)}%"]
            elif kind == "adds":
                stream, out = trace[f"layers.{block}.out"].inputs[0], seen(trace, f"layers.{block}.out")
                ratio = seen(trace, f"layers.{block}.ffn")[-1].norm() / seen(trace, stream)[-1].norm()
                numbers = [f"{number(100 * float(ratio))}%", number(float(out[-1].norm()))]
            else:
                numbers = [f"{number(100 * float(trace['logits'].value[0, -1].double().softmax(-1).max()))}%"]
            assert all(one in text for one in numbers), (step, numbers, text)
        assert page.locator("[data-walk-on]").is_disabled()
        page.keyboard.press("ArrowLeft")
        page.wait_for_selector(f"[data-walk='{order[-2]}']")
        page.keyboard.press("Escape")
        page.wait_for_selector("[data-walk='']")
        assert page.locator("[data-waits]").count() == 0


def test_play_ends_at_the_answer_and_another_run_ends_it(tab: Tab) -> None:
    page = tab.page
    tab.go(view="map", prompt=PROMPT)
    page.wait_for_selector("[data-map] [data-norm]")
    page.evaluate("(own => { window.setTimeout = (run, ms, ...rest) => own(run, ms > 100 ? 0 : ms, ...rest); })(setTimeout)")
    page.press("[data-walk-play]", "Enter")
    page.wait_for_selector("[data-walk=answer]")
    expect(page.locator("[data-walk-play]")).to_have_text(phrases("en")["page.flow.play"])
    page.press("[data-walk-back]", "Enter")
    page.wait_for_selector("[data-waits]")
    page.click(".generate .strong")
    page.wait_for_selector("[data-walk='']")
    expect(page.locator("[data-waits]")).to_have_count(0)
