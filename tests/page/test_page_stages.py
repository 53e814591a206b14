"""Attention in stages: each cell is a number of the run, or a product of numbers that ran; one query's row walks through them."""

from collections.abc import Iterator
from itertools import accumulate

import pytest
import torch
from playwright.sync_api import Browser, expect

import pellucid
from browser import Tab, address_of, open_tab
from pellucid.messages import phrases
from pellucid.tracing import Seen, Trace

KINDS = [
    ("capitals", "layers.2.attn", 1, 0),
    ("capitals-llama", "layers.1.attn", 3, 0),  # two query heads read one key head
    ("capitals-llama", "layers.1.attn", 3, 2),  # keys of three steps
    ("capitals-deepseek", "layers.1.attn", 2, 1),  # two parts of a key
    ("capitals-t5", "decoder.layers.1.cross", 2, 1),  # keys of a source, made in the first step
]


@pytest.fixture(scope="module")
def wide(browser: Browser, address: str) -> Iterator[Tab]:
    with open_tab(browser, address, reduced_motion="reduce") as tab:
        yield tab


def seen(trace: Trace, path: str, step: int) -> Seen:
    return next(s for s in trace if s.path == path and s.step == step)


def products(trace: Trace, part: str, head: int, step: int) -> torch.Tensor:
    """Return queries times keys of a head, by hand: keys are those of all steps so far, and a key head serves its group."""
    scores = seen(trace, f"{part}.scores", step)
    half, keys = len(scores.inputs) // 2, scores.shape[-1]
    total = torch.zeros(scores.shape[-2:], dtype=torch.float64)
    for query, key in zip(scores.inputs[:half], scores.inputs[half:], strict=True):
        rows = [s.value[0].double() for s in trace if s.path == key and s.step <= step]
        k = rows[-1] if len(rows[-1]) == keys else torch.cat(rows)
        q = seen(trace, query, step).value[0, :, head].double()
        own = k[:, head * k.shape[1] // scores.shape[1]] if k.ndim == 3 else k
        total += q[:, : own.shape[-1]] @ own.T
    return total


def values(trace: Trace, part: str, head: int, step: int) -> torch.Tensor:
    """Return the values of every key of a head, by hand; a value head serves its group."""
    heads, keys = (seen(trace, f"{part}.pattern", step).shape[i] for i in (1, 3))
    rows = [s.value[0].double() for s in trace if s.path == f"{part}.v" and s.step <= step]
    v = rows[-1] if len(rows[-1]) == keys else torch.cat(rows)
    return v[:, head * v.shape[1] // heads]


def cells(tab: Tab, selector: str) -> list[float]:
    return [float(x) for x in tab.page.eval_on_selector_all(f"{selector} [data-number]", "all => all.map(e => e.dataset.number)")]


def drawn(tab: Tab, stage: str) -> dict[tuple[int, int], float | None]:
    cells = tab.page.eval_on_selector_all(f"[data-stage={stage}] [data-at]", "els => els.map(e => ({...e.dataset}))")
    out = dict[tuple[int, int], float | None]()
    for c in cells:
        row, column = map(int, c["at"].split(","))
        out[row, column] = None if "hidden" in c else float(c["number"])
    return out


@pytest.mark.parametrize(("name", "part", "head", "step"), KINDS)
@pytest.mark.quick(4)
def test_every_stage_is_what_ran(wide: Tab, name: str, part: str, head: int, step: int) -> None:
    model = pellucid.load(f"pellucid/{name}", dtype="float32")
    prompt = "The capital of France is" + (" Paris." if name.endswith("t5") else "")
    trace = pellucid.trace(model, prompt, step + 1)
    place = {"view": "attention", "model": model.name, "prompt": prompt, "steps": step + 1, "step": step}
    wide.go(**place, head=head, block=part.rpartition(".")[0], tensor=f"{part}.pattern")
    wide.page.wait_for_selector("[data-stage=dots]")
    wide.settle()
    by_hand = products(trace, part, head, step)
    scores, shares = (seen(trace, f"{part}.{name}", step).value[0, head] for name in ("scores", "pattern"))
    dots, scaled, soft = (drawn(wide, stage) for stage in ("dots", "scores", "shares"))
    assert len(dots) == len(scaled) == len(soft) == by_hand.numel()
    for (r, c), value in dots.items():
        assert value == pytest.approx(by_hand[r, c].item(), rel=1e-9, abs=1e-9)
    assert all(value is None or value == pytest.approx(scores[at].item(), rel=1e-6) for at, value in scaled.items())
    assert all((value or 0) == pytest.approx(shares[at].item(), rel=1e-6) for at, value in soft.items())
    assert {at for at, value in soft.items() if value is None} == {at for at, value in scaled.items() if value is None}
    other = products(trace, part, (head + 2) % 4, step)  # another head's numbers would be seen
    assert any(value != pytest.approx(other[at].item(), rel=1e-3) for at, value in dots.items())
    row, v = int(wide.page.get_attribute("[data-stage=values]", "data-row") or -1), values(trace, part, head, step)
    weighed = shares[row].double()[:, None] * v
    assert row == len(shares) - 1
    for key, theirs in enumerate(weighed):
        own = cells(wide, f"[data-products='{key}']")
        assert own == pytest.approx(theirs.tolist(), rel=1e-6, abs=1e-12)
    z = seen(trace, f"{part}.z", step).value[0, row, head].double()
    assert cells(wide, "[data-sum]") == pytest.approx(z.tolist(), rel=1e-6)
    assert weighed.sum(0).tolist() == pytest.approx(z.tolist(), rel=1e-3, abs=1e-5)  # in float32 there
    assert cells(wide, "[data-sum]") != pytest.approx((weighed.sum(0) - weighed[-1]).tolist(), rel=1e-3)  # a key left out would be seen


def test_a_cell_is_read_in_each_stage_and_leads_to_its_sum(wide: Tab) -> None:
    page = wide.page
    wide.go(view="attention", head=0)
    page.wait_for_selector("[data-stage=dots]")
    page.click('[data-stage=dots] [data-at="3,1"]')
    expect(page.locator("[data-chosen]")).to_have_attribute("data-chosen", "3,1")
    page.hover('[data-stage=shares] [data-at="1,3"]', force=True)
    expect(page.locator("[data-chosen]")).to_have_attribute("data-chosen", "1,3")
    assert page.locator("[data-share]").count() == 0  # it is hidden: it has no share
    page.mouse.move(5, 5)
    expect(page.locator("[data-chosen]")).to_have_attribute("data-chosen", "3,1")
    page.click("[data-score]")
    page.wait_for_selector('#reading[data-cell="0,0,3,1"]')
    assert "tensor=layers.0.attn.scores" in address_of(page)


def test_a_long_text_shows_the_part_around_the_pair(wide: Tab) -> None:
    wide.go(view="attention", prompt="#" + " ".join(str(i) for i in accumulate([7] * 40)), cell="20,18", head=1)
    wide.page.wait_for_selector("[data-stage=dots]")
    wide.settle()
    cells = drawn(wide, "scores")
    assert len(cells) == 144 and (20, 18) in cells and cells[20, 18] is not None
    assert "12" in wide.page.inner_text(".stages ~ .note") and "40" in wide.page.inner_text(".stages ~ .note")


STEPS = ["dots", "scores", "mask", "shares", "weigh", "sum"]
# Animations that scripts start, and how long each takes.
COUNTED = """(() => {
  window.__moves = [];
  const own = Element.prototype.animate;
  Element.prototype.animate = function (frames, how) { window.__moves.push(how.duration); return own.call(this, frames, how); };
})()"""
VISIBLE = "(all) => all.filter(e => getComputedStyle(e).visibility === 'visible').length"


def reached(tab: Tab) -> list[int]:
    """Return how many cells of the second query's row are seen in each stage."""
    groups = [f"[data-stage={stage}] [data-cell^='1,']" for stage in ("dots", "scores", "shares")]
    return [tab.page.eval_on_selector_all(one, VISIBLE) for one in (*groups, "[data-products]", "[data-sum]")]


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
@pytest.mark.quick(2)
def test_a_row_walks_through_the_stages(browser: Browser, address: str, motion: str) -> None:
    """By keyboard, step by step. Each step shows what it makes and no more; under reduced motion nothing moves."""
    with open_tab(browser, address, reduced_motion=motion) as tab:
        page = tab.page
        page.add_init_script(COUNTED)
        tab.go(view="attention", head=1, position=1)
        page.wait_for_selector("[data-stage=values]")
        tab.settle()
        every = reached(tab)
        assert every == [5, 5, 5, 5, 1] and page.get_attribute("[data-walk]", "data-walk") == ""
        page.focus("[data-walk-play]")
        counts = []
        for step in STEPS:
            page.keyboard.press("ArrowRight")
            page.wait_for_selector(f"[data-walk={step}]")
            counts.append(reached(tab))
            veiled = page.locator("[data-stage=scores] [data-cell^='1,'] [data-hidden]").count()
            assert veiled == (0 if step in STEPS[:2] else 3)
            if step == "scores":  # what the mask is about to hide was computed
                shown = page.locator("[data-stage=scores] [data-cell^='1,'] [data-number]")
                trace = pellucid.trace(pellucid.load("pellucid/capitals", dtype="float32"), "The capital of France is")
                theirs = seen(trace, "layers.0.attn.scores", 0).value[0, 1, 1]
                assert [float(x) for x in shown.evaluate_all("all => all.map(e => e.dataset.number)")] == pytest.approx(
                    theirs.tolist(), rel=1e-6
                )
        assert counts == [[5, 0, 0, 0, 0], [5, 5, 0, 0, 0], [5, 5, 0, 0, 0], [5, 5, 5, 0, 0], [5, 5, 5, 5, 0], every]
        assert "z" in page.inner_text("[data-walk]") and page.locator("[data-walk-on]").is_disabled()
        moves = page.evaluate("window.__moves")
        assert (len(moves) == 0) == (motion == "reduce") and all(150 <= ms <= 250 for ms in moves)
        page.keyboard.press("ArrowLeft")
        page.wait_for_selector("[data-walk=weigh]")
        page.keyboard.press("Escape")
        page.wait_for_selector("[data-walk='']")
        assert reached(tab) == every and len(page.evaluate("window.__moves")) == len(moves)  # a step back moves nothing


def test_play_walks_to_the_end_and_another_head_ends_it(wide: Tab) -> None:
    page = wide.page
    wide.go(view="attention", head=1)
    page.wait_for_selector("[data-stage=values]")
    page.evaluate("(own => { window.setTimeout = (run, ms, ...rest) => own(run, ms === 900 ? 0 : ms, ...rest); })(setTimeout)")
    page.press("[data-walk-play]", "Enter")
    page.wait_for_selector("[data-walk=sum]")
    expect(page.locator("[data-walk-play]")).to_have_text(phrases("en")["page.play"])
    page.click(".heads button >> nth=2")
    page.wait_for_selector("[data-walk='']")


def test_on_a_phone_each_step_is_seen_and_its_buttons_stay(browser: Browser, address: str) -> None:
    """Stages that stand below one another are brought into the window; the buttons are where they were."""
    lies = "e => { const b = e.getBoundingClientRect(); return b.top >= 0 && b.bottom <= innerHeight + 1; }"
    with open_tab(browser, address, viewport={"width": 390, "height": 844}, reduced_motion="reduce") as tab:
        page = tab.page
        tab.go("zh", view="attention", head=1)
        page.wait_for_selector("[data-stage=values]")
        tab.settle()
        assert not page.locator("[data-stage=values]").evaluate(lies)
        for step, stage in zip(STEPS, ("dots", "scores", "scores", "shares", "values", "values"), strict=True):
            page.click("[data-walk-on]")
            page.wait_for_selector(f"[data-walk={step}]")
            for place in (f"[data-stage={stage}]", "[data-walk-on]"):
                assert page.locator(place).evaluate(lies), (step, place)
