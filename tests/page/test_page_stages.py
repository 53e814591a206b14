"""Attention in stages: each cell is a number of the run, or the dot product of a query and a key that ran."""

from collections.abc import Iterator
from itertools import accumulate

import pytest
import torch
from playwright.sync_api import Browser, expect

import pellucid
from browser import Tab, address_of, open_tab
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


def drawn(tab: Tab, stage: str) -> dict[tuple[int, int], float | None]:
    cells = tab.page.eval_on_selector_all(f"[data-stage={stage}] [data-at]", "els => els.map(e => ({...e.dataset}))")
    out = dict[tuple[int, int], float | None]()
    for c in cells:
        row, column = map(int, c["at"].split(","))
        out[row, column] = None if "hidden" in c else float(c["number"])
    return out


@pytest.mark.parametrize(("name", "part", "head", "step"), KINDS)
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
