"""The sliders of view Next token: a movement leaves nothing behind, sends no request, and does not write the address each time.

A worker ranks and adds up, and where a browser refuses it the page itself; the numbers are the engine's either way."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, CDPSession, expect

import pellucid
from browser import Tab, open_tab
from covering import FULL
from pellucid.ops.sampling.settings import Sampling
from pellucid.ops.sampling.stages import choose, stages
from pellucid.tracing import Trace

PROMPT = "The capital of France is"
ENDS = {"temperature": (0.2, 1.5), "top_k": (3, 40), "top_p": (0.3, 0.9), "min_p": (0.0, 0.4)}
# Move a slider to each of its values, one a frame. Returns how long it took.
MOVE = """([slider, values]) => new Promise(done => {
  const own = document.querySelector(slider), began = performance.now();
  const next = () => {
    if (values.length === 0) return done(performance.now() - began);
    own.value = String(values.shift());
    own.dispatchEvent(new Event("input", { bubbles: true }));
    requestAnimationFrame(next);
  };
  next();
})"""
WRITTEN = """(() => {
  window.__written = 0;
  const own = history.replaceState.bind(history);
  history.replaceState = (...how) => { window.__written++; own(...how); };
})()"""


@pytest.fixture
def moving(browser: Browser, address: str) -> Iterator[Tab]:
    with open_tab(browser, address) as tab:
        tab.page.add_init_script(WRITTEN)
        tab.go(view="map", prompt=PROMPT)
        tab.page.click("nav a[href*='view=next']")
        tab.page.wait_for_selector("[data-pick]")
        tab.settle()
        yield tab


def move(tab: Tab, name: str, values: list[float]) -> float:
    return float(tab.page.evaluate(MOVE, [f"[data-setting={name}]", values]))


def nodes(tab: Tab, devtools: CDPSession) -> tuple[int, int]:
    """Return the elements of the page, and all nodes that the browser holds, those that the page has dropped too."""
    tab.settle()
    devtools.send("HeapProfiler.collectGarbage")
    return tab.page.evaluate("document.querySelectorAll('*').length"), devtools.send("Memory.getDOMCounters")["nodes"]


def test_ten_movements_of_each_slider_leave_no_node(moving: Tab) -> None:
    devtools = moving.page.context.new_cdp_session(moving.page)
    devtools.send("HeapProfiler.enable")
    first = nodes(moving, devtools)[0]
    counts = []
    for _ in range(5 if FULL else 4):
        for name, (low, high) in ENDS.items():
            move(moving, name, [low, high])
        counts.append(nodes(moving, devtools))
    page, every = zip(*counts, strict=True)
    assert len(set(page)) == 1  # each setting that is on has a column, and no more
    rows = moving.page.locator("[data-stage=logits]").count()
    columns = moving.page.locator(".scroll thead th").count() - 1
    assert columns == 6 and page[0] - first <= columns * (rows + 3) + 20  # a cell is one element; a heading three; the curve
    assert max(every[2:]) <= every[1] + 30
    moving.page.evaluate("window.__kept = [...document.querySelectorAll('tbody')].map(e => e.cloneNode(true))")
    assert nodes(moving, devtools)[1] > every[-1] + 30  # a leak would be seen


def test_movements_are_coalesced(moving: Tab) -> None:
    page = moving.page
    page.evaluate("window.__written = 0")
    before = len(moving.requests)
    took = move(moving, "temperature", [0.5 + 0.05 * (i % 20) for i in range(57)])
    assert 1 <= page.evaluate("window.__written") <= 2 + took / 250 < 40
    moving.settle()
    assert "temperature%3A1.3" in page.evaluate("location.hash")
    assert page.input_value("#set-temperature") == "1.3"
    assert len(moving.requests) - before <= 2  # the text of the token where the hand rests, and not of each on the way
    move(moving, "temperature", [0.7, 0.8])
    page.click(".share .opener")
    page.evaluate("navigator.clipboard.writeText = (text) => { window.__copied = text; return Promise.resolve(); }")
    page.evaluate(MOVE, ["[data-setting=temperature]", [0.3, 1.2]])
    page.click("[data-share=link]")
    assert "temperature%3A1.2" in page.evaluate("window.__copied")  # what waits is written before it is read
    move(moving, "temperature", [0.4, 0.6])
    page.go_back()
    page.wait_for_selector("svg[data-map]")
    page.wait_for_timeout(400)
    assert "trial" not in page.evaluate("location.hash")  # what waited was of the other entry
    page.go_forward()
    expect(page.locator("[data-pick]")).to_have_count(1)


# Refusals of a worker: a browser has none, its constructor throws, or its script is refused later.
REFUSED = {
    "": "",
    "none": "delete window.Worker",
    "thrown": "window.Worker = class { constructor() { throw new DOMException('refused', 'SecurityError'); } }",
    "later": """window.Worker = class extends EventTarget {
      constructor() { super(); setTimeout(() => { const e = new Event("error", { cancelable: true }); this.onerror?.(e); }); }
      postMessage() {}
      terminate() {}
    }""",
}


@pytest.fixture(scope="module")
def trace() -> Trace:
    return pellucid.trace(pellucid.load("pellucid/capitals", dtype="float32"), PROMPT)


def differing(tab: Tab, trace: Trace, setting: Sampling) -> list[str]:
    """Return what the page shows of a setting otherwise than the engine: tokens, and stages of a token."""
    page, logits = tab.page, trace.all("logits")[0].value[0, -1]
    cells = page.eval_on_selector_all(
        "td[data-stage]", "all => all.map(e => [e.dataset.stage, Number(e.closest('tr').dataset.id), Number(e.dataset.exact)])"
    )
    engine = dict(stages(logits, setting, trace.ids))
    assert {name for name, *_ in cells} == set(engine)
    wrong = [f"{name} {i}" for name, i, x in cells if x != pytest.approx(float(engine[name][i]), rel=1e-6, abs=1e-12)]
    picked = choose(logits, setting, trace.ids)
    return wrong + ([f"picked {picked}"] if page.get_attribute("[data-pick]", "data-pick") != str(picked) else [])


@pytest.mark.parametrize("refusal", REFUSED)
@pytest.mark.quick(2)
def test_the_numbers_are_the_engines_with_a_worker_and_without(browser: Browser, address: str, trace: Trace, refusal: str) -> None:
    with open_tab(browser, address) as tab:
        tab.page.add_init_script(REFUSED[refusal])
        tab.go(view="next", prompt=PROMPT)
        tab.page.wait_for_selector("[data-pick]")
        move(tab, "temperature", [0.5 + 0.05 * i for i in range(30)])
        move(tab, "top_p", [0.99 - 0.01 * i for i in range(10)])
        tab.settle()
        assert len(tab.page.workers) == (0 if refusal else 1)
        expect(tab.page.locator("[data-pick]")).to_have_count(1)
        last = Sampling.of({"temperature": 1.95, "top_p": 0.9, "seed": 0})
        assert differing(tab, trace, last) == []
        assert differing(tab, trace, Sampling.of({"temperature": 1.9, "top_p": 0.9, "seed": 0})) != []  # the setting before would be seen


def test_numbers_of_another_run_are_not_shown(browser: Browser, address: str) -> None:
    """An answer that comes after the run has changed is of logits that are gone: it is dropped."""
    late = """const Own = window.Worker; window.Worker = class extends Own {
      set onmessage(run) { super.onmessage = (e) => { (window.__late ??= []).push(() => run(e)); }; }
    }"""
    with open_tab(browser, address) as tab:
        page = tab.page
        page.add_init_script(late)
        tab.go(view="next", prompt=PROMPT)
        page.wait_for_function("() => window.__late?.length === 1")
        assert page.locator("[data-pick]").count() == 0
        tab.enter_prompt("The capital of Italy is")
        page.evaluate("window.__late.shift()()")
        page.wait_for_function("() => window.__late.length === 1")
        assert page.locator("[data-pick]").count() == 0
        page.evaluate("window.__late.shift()()")
        page.wait_for_selector("[data-pick][data-happened=true]")
