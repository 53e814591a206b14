"""The page's further views in a real Chromium, beside the Python API: sampling, attention, experts, cache, budget, changes."""

import json
import math
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, expect

import pellucid
from browser import Tab, open_tab
from pellucid.api.count import count
from pellucid.api.model import Model
from pellucid.ops.sampling.settings import Sampling
from pellucid.ops.sampling.stages import choose, stages
from pellucid.tracing import Trace

PROMPT = "The capital of France is"
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 2.5, "seed": 3},
    {"temperature": 3, "top_k": 40, "top_p": 0.9, "seed": 12},
    {"temperature": 2, "min_p": 0.01, "repetition": 1.5, "presence": 0.5, "frequency": 1, "seed": 5},
]


@pytest.fixture(scope="module")
def model() -> Model:
    return pellucid.load("pellucid/capitals", dtype="float32")


@pytest.fixture(scope="module")
def run(model: Model) -> Trace:
    return pellucid.trace(model, PROMPT)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.quick(4)
def test_every_stage_of_sampling_is_the_engines(tab: Tab, run: Trace, setting: dict[str, Any]) -> None:
    s, logits = Sampling(**setting), run.last_logits()
    tab.go(view="next", prompt=PROMPT, sampling=" ".join(f"{k}:{v}" for k, v in setting.items()))
    tab.page.wait_for_selector("[data-pick]")
    assert tab.page.get_attribute("[data-pick]", "data-pick") == str(choose(logits, s, run.ids, []))
    expected = dict(stages(logits, s, run.ids, []))
    shown = tab.page.eval_on_selector_all(
        "tr[data-id] td", "cells => cells.map(c => [c.parentElement.dataset.id, c.dataset.stage, c.dataset.exact])"
    )
    assert {name for _, name, _ in shown} == expected.keys()
    assert len(shown) == 20 * len(expected)
    for id, name, exact in shown:
        value = float(expected[name][int(id)])
        assert float(exact.replace("∞", "inf")) == pytest.approx(value, rel=1e-12, abs=1e-300), (id, name)


def test_a_slider_never_runs_the_model(tab: Tab, run: Trace) -> None:
    tab.go(view="next", prompt=PROMPT)
    tab.page.wait_for_selector("[data-pick]")
    before = len(tab.requests)
    tab.page.locator("[data-setting=temperature]").fill("0.5")
    tab.page.locator("[data-setting=top_k]").fill("7")
    tab.page.wait_for_function("() => decodeURIComponent(location.hash).includes('top_k:7')")
    kept = tab.page.locator("tr[data-id]:not(.cut)").count()
    assert kept == 7
    assert [r for r in tab.requests[before:] if "/api/" in r] == []


def test_attention_shows_the_weights_of_the_chosen_row(tab: Tab, run: Trace) -> None:
    pattern = run["layers.2.attn.pattern"].value[0, 1]
    tab.go(view="attention", prompt=PROMPT, block="layers.2", head=1, position=3)
    tab.page.wait_for_selector("[data-weight]")
    shown = tab.page.eval_on_selector_all("[data-weight]", "cells => cells.map(c => Number(c.dataset.weight))")
    assert torch.equal(torch.tensor(shown, dtype=torch.float32), pattern[3])
    assert tab.page.locator(".heads button").count() == 4 * 4


def test_shared_heads_stand_under_their_key(tab: Tab) -> None:
    tab.go(view="attention", model="pellucid/capitals-llama", prompt=PROMPT)
    config = pellucid.load("pellucid/capitals-llama").config.layers[0].attn
    first = tab.page.locator(".heads").first
    assert first.locator(".group").count() == config.kv_heads < config.heads  # type: ignore[union-attr]
    assert first.locator(".key").all_inner_texts() == [f"k {g}" for g in range(config.kv_heads)]  # type: ignore[union-attr]


def test_experts_are_those_that_were_chosen(tab: Tab) -> None:
    run = pellucid.trace(pellucid.load("pellucid/capitals-deepseek", dtype="float32"), PROMPT)
    tab.go(view="experts", model="pellucid/capitals-deepseek", prompt=PROMPT, block="layers.2")
    tab.page.wait_for_selector("[data-expert]")
    shown = tab.page.eval_on_selector_all("[data-expert]", "cells => cells.map(c => [Number(c.dataset.expert), Number(c.dataset.share)])")
    chosen, share = run["layers.2.ffn.chosen"].value[0], run["layers.2.ffn.share"].value[0]
    assert [int(e) for e, _ in shown] == chosen.flatten().tolist()
    assert torch.equal(torch.tensor([s for _, s in shown], dtype=torch.float32), share.flatten())
    loads = tab.page.eval_on_selector_all("[data-block='layers.2'] [data-load]", "cells => cells.map(c => Number(c.dataset.load))")
    assert loads == torch.bincount(chosen.flatten(), minlength=8).tolist()


@pytest.mark.parametrize("name", ["capitals", "capitals-llama", "capitals-deepseek"])
@pytest.mark.quick(4)
def test_the_cache_grows_by_what_is_counted(tab: Tab, name: str) -> None:
    tab.go(view="cache", model=f"pellucid/{name}", prompt=PROMPT, steps=2)
    tab.page.wait_for_selector("tr[data-step='1']")
    each = int(count(f"pellucid/{name}", dtype="float32", cache="float32")["cache.bytes_per_token"])
    total = [int(tab.page.get_attribute(f"tr[data-step='{k}'] [data-total]", "data-total") or 0) for k in (0, 1)]
    assert total == [5 * each, 6 * each]
    tab.page.click("tr[data-step='1'] button")
    tab.page.wait_for_selector(".positions .fresh")
    assert tab.page.locator(".positions .read").count() == 5


def test_budget_shows_the_counted_numbers(tab: Tab) -> None:
    bill = count("pellucid/capitals", dtype="float32", cache="float32")  # as it runs
    tab.go(view="budget", prompt=PROMPT)
    tab.page.wait_for_selector("[data-number='parameters.total'][data-value]")
    for number in (
        "parameters.total",
        "parameters.active",
        "bytes.total",
        "cache.bytes_per_token",
        "cache.bytes",
        "flops.prefill",
        "flops.decode",
    ):
        assert tab.page.get_attribute(f"[data-number='{number}']", "data-value") == str(int(bill[number])), number
    parts = dict(tab.page.eval_on_selector_all("[data-part]", "boxes => boxes.map(b => [b.dataset.part, Number(b.dataset.count)])"))
    assert parts == {k: int(n) for k, n in bill.below("parameters.by_part")}


def test_a_large_model_on_a_device_in_three_choices(tab: Tab) -> None:
    tab.refusals = {400}  # the specimen itself has fewer positions
    bill = count("deepseek-v3", context=131072, device="h200")
    tab.go(view="budget", prompt=PROMPT)
    tab.page.get_by_label("Device").first.select_option("h200")
    tab.page.get_by_label("Beside it").select_option("deepseek-v3")
    tab.page.locator("input[type=number]").first.fill("131072")
    tab.page.keyboard.press("Tab")
    cell = tab.page.locator("[data-model='deepseek-v3'][data-number='cache.bytes']")
    expect(cell).to_have_attribute("data-value", str(int(bill["cache.bytes"])))


EDITS = [
    ("layers.2.attn.z", "0,:,1,:", "to", "0"),
    ("layers.0.mid", "0,4,7", "to", "2.5"),
    ("layers.1.out", ":,:,:", "times", "0.5"),
]


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.quick(4)
def test_a_change_gives_the_logits_of_an_edit(tab: Tab, model: Model, edit: tuple[str, str, str, str]) -> None:
    path, at, how, value = edit
    part = tuple(slice(*(int(n) if n else None for n in w.split(":"))) if ":" in w else int(w) for w in at.split(","))

    def change(x: torch.Tensor) -> torch.Tensor:
        x[part] = float(value) if how == "to" else x[part] * float(value)
        return x

    seen = pellucid.trace(model, PROMPT, edit={path: change})
    logits = shown(tab, json.dumps([list(edit)]))
    for id, logit in logits.items():
        assert logit == float(seen["logits"].value[0, -1, id])


def test_a_tensor_is_patched_from_another_prompt(tab: Tab, model: Model) -> None:
    other = pellucid.trace(model, "The capital of Japan is")["layers.0.mid"].value

    def change(x: torch.Tensor) -> torch.Tensor:
        x[0, 3] = other[0, 3]
        return x

    seen = pellucid.trace(model, PROMPT, edit={"layers.0.mid": change})
    logits = shown(tab, json.dumps([["layers.0.mid", "0,3,:", "prompt", "The capital of Japan is"]]))
    for id, logit in logits.items():
        assert logit == float(seen["logits"].value[0, -1, id])


def test_a_score_of_minus_infinity_hides_a_token(tab: Tab, model: Model) -> None:
    """And one of a whole row is refused in one line, with what is meant instead."""
    seen = pellucid.trace(model, PROMPT, edit=[pellucid.put("layers.0.attn.scores", -math.inf, T=4, S=3)])
    for id, logit in shown(tab, json.dumps([["layers.0.attn.scores", ":,:,4,3", "to", "-inf"]])).items():
        assert logit == float(seen["logits"].value[0, -1, id])


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_row_without_a_key_is_refused(browser: Browser, address: str, lang: str) -> None:
    with open_tab(browser, address, refusals=[400]) as tab:
        tab.go(lang, view="change", prompt=PROMPT, edits=json.dumps([["layers.0.attn.scores", ":,:,4,:", "to", "-inf"]]))
        line = tab.page.locator("main [role=alert]")
        expect(line).to_contain_text("layers.0.attn.pattern[T=4] = 0")
        assert "\n" not in line.inner_text()


def shown(tab: Tab, edits: str) -> dict[int, float]:
    """Return the page's logits after a change, by id."""
    tab.go(view="change", prompt=PROMPT, edits=edits)
    tab.page.wait_for_selector("[data-logit]")
    cells = tab.page.eval_on_selector_all(
        "[data-logit]", "cells => cells.map(c => [Number(c.parentElement.dataset.id), Number(c.dataset.logit)])"
    )
    assert len(cells) >= 10
    return {int(id): logit for id, logit in cells}
