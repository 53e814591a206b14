"""The page's Budget in a real Chromium, beside the Python API to the printed digit: devices, formulas, curves, tensors, measurements."""

import json
import re
from typing import Any

import pytest
from playwright.sync_api import expect

import pellucid
from browser import Tab
from pellucid import catalog
from pellucid.counting.ranks import Split, pace, split_of, spread
from pellucid.counting.training_memory import Way, training
from pellucid.documents import count
from pellucid.documents.amount import figures
from pellucid.messages import phrases

V3: dict[str, Any] = {"context": 131072, "batch": 8, "dtype": "fp8", "cache": "bfloat16", "device": "h200"}


def shown(tab: Tab, number: str) -> str:
    """Return the text of a number on the page."""
    return tab.page.locator(f"button[data-number='{number}']").first.inner_text()


def test_a_large_model_on_eight_devices_in_three_clicks(tab: Tab) -> None:
    """The three clicks are the view, the situation and a formula; the rest is read."""
    bill, split = pellucid.count("deepseek-v3", **V3), split_of("tp=1,pp=1,ep=8")
    (stage,), device = spread(bill, split).stages, count.device_of(bill)
    assert device is not None and split.ranks == 8
    tab.go()
    clicks = 0

    def click(selector: str) -> None:
        nonlocal clicks
        tab.page.click(selector)
        clicks += 1

    click("nav a[href$='#view=budget']")
    click("[data-situation='deepseek-v3-131072-8xh200']")
    tab.page.wait_for_selector("[data-ranks='8']")
    messages = phrases("en")
    assert "DeepSeek-V3" in tab.page.inner_text("[data-ranks] h2") and "8 × NVIDIA H200 SXM" in tab.page.inner_text("[data-ranks] h2")
    assert "131,072" in tab.page.inner_text("[data-ranks] h2")
    assert shown(tab, "ranks.stages.0.parameters") == f"{stage.parameters:,}"
    assert f"{stage.weights:,} B" in shown(tab, "ranks.stages.0.weights")
    assert f"{stage.cache:,} B" in shown(tab, "ranks.stages.0.cache")
    fits = stage.weights + stage.cache <= device.memory
    assert shown(tab, "ranks.bounds.fits").startswith(messages["page.budget.fits" if fits else "page.budget.large"])
    for phase in ("prefill", "decode"):
        rate = pace(bill, split, phase, device).rate
        assert shown(tab, f"ranks.bounds.{phase}.tokens_per_second").startswith(f"≤ {figures(rate)} ")
    click("[data-number='ranks.stages.0.parameters']")
    assert tab.page.inner_text(".why").startswith("norms + attn") and f"= {stage.parameters:,}" in tab.page.inner_text(".why")
    assert clicks == 3


def test_a_formula_opens_down_to_the_fields_of_the_config(tab: Tab) -> None:
    bill = pellucid.count("deepseek-v3", context=4096)
    tab.go(view="budget", budget="of:deepseek-v3 context:4096")
    tab.page.click("td[data-number='parameters.total'] button")
    for path in ("parameters.total", "parameters.layers.3", "parameters.layers.3.attn.q_b.weight"):
        if path != "parameters.total":
            tab.page.click(f".why button:text-matches('^{re.escape(path)} =')")
        expect(tab.page.locator(f"[data-formula='{path}']")).to_have_text(bill[path].formula)
    config = bill.config.layers[3].attn
    assert f"{config.q_rank:,}" in tab.page.inner_text("[data-formula='parameters.layers.3.attn.q_b.weight']")  # type: ignore[union-attr]
    tab.page.click("td[data-number='cache.bytes_per_token'] button")
    tab.page.click(".why button:text-matches('^cache.layers.3.attn =')")
    expect(tab.page.locator("[data-formula='cache.layers.3.attn']")).to_have_text(bill["cache.layers.3.attn"].formula)


def test_split_price_and_training_are_counted(tab: Tab) -> None:
    how: dict[str, Any] = {"context": 2048, "batch": 4, "dtype": "bfloat16", "cache": "bfloat16", "device": "h100"}
    bill, split = pellucid.count("llama-3.1-8b", **how), Split(2, 2, 1)
    document = json.loads(json.dumps(count.document(bill, count.scenario("h100", 2.5, True, 8, True, 2, "tp=2,pp=2"))))
    tab.go(view="budget", budget="of:llama-3.1-8b context:2048 batch:4 device:h100")
    messages = phrases("en")
    tab.page.click("details:has([data-devices]) summary")
    tab.page.get_by_label(messages["page.budget.tp"]).fill("2")
    tab.page.get_by_label(messages["page.budget.pp"]).fill("2")
    tab.page.get_by_label(messages["page.budget.price"]).fill("2.5")
    tab.page.get_by_label(messages["page.budget.train"], exact=True).check()
    tab.page.get_by_label(messages["page.budget.lora"]).fill("8")
    tab.page.get_by_label(messages["page.budget.shards"]).fill("2")
    tab.page.get_by_label(messages["page.budget.recompute"]).check()
    tab.page.wait_for_selector("[data-ranks='4']")
    for i, stage in enumerate(spread(bill, split).stages):
        row = tab.page.locator("[data-ranks] details tbody tr").nth(i)
        assert f"{stage.parameters:,}" in (row.text_content() or "")
    ranks = document["ranks"]["bounds"]["decode"]
    fullest = max(range(2), key=lambda i: (document["ranks"]["stages"][i]["weights"] + document["ranks"]["stages"][i]["cache"], -i))
    assert tab.page.locator(f"[data-number='ranks.stages.{fullest}.cache']").first.get_attribute("data-value") == str(
        document["ranks"]["stages"][fullest]["cache"]
    )
    price = tab.page.locator("[data-number='ranks.bounds.decode.price_of_a_million_tokens']").first
    expect(price).to_have_text(f"≥ {figures(ranks['price_of_a_million_tokens'])}")
    tab.page.get_by_label(messages["page.budget.pp"]).fill("1")
    tab.page.get_by_label(messages["page.budget.tp"]).fill("1")
    tab.page.keyboard.press("Tab")
    one = tab.page.locator("td[data-number='bounds.decode.price_of_a_million_tokens']")
    alone = count.document(bill, count.scenario("h100", 2.5))["bounds"]["decode"]["price_of_a_million_tokens"]
    expect(one).to_have_attribute("data-value", str(alone))
    way = training(bill, Way(8, True, 2))
    rows = tab.page.eval_on_selector_all(
        "[data-training] [data-number]", "all => all.map(b => [b.dataset.number.slice(9), Number(b.dataset.value)])"
    )
    assert (
        dict(rows) == {name: int(way[name]) for name, _ in rows} and {"memory.total", "memory.adapters", "flops.total"} <= dict(rows).keys()
    )
    tab.page.locator("[data-training] [data-number='training.memory.adapters']").click()
    assert way["memory.adapters"].formula in tab.page.inner_text("[data-training] .why")


def test_an_impossible_split_is_refused(tab: Tab) -> None:
    tab.refusals = {400}
    tab.go(view="budget", budget="of:llama-3.1-8b context:2048 device:h100 tp:3")
    expect(tab.page.locator("[data-column]").first).to_contain_text("tp")
    assert tab.page.locator("[data-ranks]").count() == 0


CURVES = [("context", "cache", "cache.bytes"), ("batch", "decode", "flops.decode"), ("dtype", "cache", "cache.bytes")]


@pytest.mark.parametrize(("along", "curve", "number"), CURVES)
@pytest.mark.quick(4)
def test_curves_are_counted_at_every_point(tab: Tab, along: str, curve: str, number: str) -> None:
    """The curves of two models are counted, and an undisclosed one is labelled so."""
    how: dict[str, Any] = {"context": 1024, "batch": 2, "dtype": "bfloat16", "cache": "bfloat16"}
    tab.go(view="budget", budget=f"of:gpt2-small context:1024 batch:2 beside:gpt2-medium,gpt-4 along:{along} curve:{curve}")
    tab.page.wait_for_selector("[data-curve-model='gpt2-medium']", state="attached")
    cells = tab.page.eval_on_selector_all(
        "[data-curve-model]", "all => all.map(c => [c.dataset.curveModel, c.dataset.at, c.dataset.value])"
    )
    assert {m for m, _, _ in cells} == {"gpt2-small", "gpt2-medium"} and len(cells) >= 8
    for model, at, value in cells:
        point = int(at) if at.isdigit() else at
        assert int(value) == int(pellucid.count(model, **how | {along: point})[number])
    undisclosed = phrases("en")["page.budget.undisclosed"]
    assert undisclosed in tab.page.inner_text("[data-column='gpt-4']") and f"GPT-4: {undisclosed}" in tab.page.inner_text("main")


def test_an_alias_is_its_model_of_the_catalogue(tab: Tab) -> None:
    """Its column has the entry's name and source, and the list of models the entry."""
    entry = catalog.models()["gpt2-small"]
    tab.go(view="budget", budget="of:gpt2 context:512")
    tab.page.wait_for_selector(f"text={entry['source']}")
    assert tab.page.inner_text("[data-column='gpt2'] > span:first-child") == entry["name"]
    label = phrases("en")["page.budget.of"]
    assert tab.page.locator(f"label:has-text('{label}') > select").first.input_value() == entry["id"]


def test_times_are_drawn_on_a_device_and_over_devices(tab: Tab) -> None:
    tab.go(view="budget", budget="of:gpt2-small context:512 device:h100 along:device curve:next")
    tab.page.wait_for_selector("[data-curve-model='gpt2-small'][data-at='h200']", state="attached")
    for name in ("h100", "h200", "m4max"):
        bill = pellucid.count("gpt2-small", context=512, device=name)
        value = tab.page.get_attribute(f"[data-curve-model='gpt2-small'][data-at='{name}']", "data-value")
        device = count.device_of(bill)
        assert device and float(value or "nan") == pace(bill, Split(), "decode", device).seconds


def test_the_map_opens_to_single_tensors(tab: Tab) -> None:
    bill = pellucid.count("deepseek-v3")
    tab.go(view="budget", budget="of:deepseek-v3 context:4096")
    page = tab.page
    page.click("[data-part='attn']")
    page.wait_for_selector("[data-part='layers.3.attn.q_b.weight']")
    inner = dict(page.eval_on_selector_all("[data-part]", "all => all.map(b => [b.dataset.part, Number(b.dataset.count)])"))
    assert sum(inner.values()) == int(bill["parameters.by_part.attn"])
    page.click("[data-part='layers.3.attn.q_b.weight']")
    page.wait_for_selector("[data-part='layers.60.attn.q_b.weight']")
    assert page.locator("[data-part]").count() == page.locator("[data-row]").count() == 58
    page.click("[data-part='layers.10.attn.q_b.weight']")
    expect(page.locator("[data-formula-count]")).to_have_text(bill["parameters.layers.3.attn.q_b.weight"].formula)
    assert page.get_attribute("[data-single]", "data-single") == "layers.10.attn.q_b.weight"


def test_a_single_tensor_of_the_opened_model_is_a_tile(tab: Tab) -> None:
    tab.go(view="budget")
    page = tab.page
    page.click("[data-part='attn']")
    page.click("[data-part='layers.0.attn.q.weight']")
    page.click("[data-part='layers.2.attn.q.weight']")
    page.click("[data-single] button")
    page.wait_for_selector("aside .frame")
    assert "layers.2.attn.q.weight" in page.inner_text("aside h2")


def test_measured_stands_beside_predicted(tab: Tab) -> None:
    """A measurement can be cancelled; after the next one the page shows the server's numbers, part by part."""
    tab.refusals = {429, 503}
    tab.go(view="budget")
    page = tab.page
    page.click("[data-measure]")
    page.click("[data-cancel]")
    page.wait_for_selector("[data-measure]")
    page.wait_for_function("async () => true")
    for _ in range(50):  # the cancelled one ends at its next reading of the clock
        page.click("[data-measure]")
        page.wait_for_selector("[data-measured], [data-measure]")
        if page.locator("main [role=alert]").count() == 0:
            break
        page.wait_for_timeout(100)
    page.wait_for_selector("[data-measured]", timeout=60_000)
    rows = page.eval_on_selector_all(
        "[data-part-path]",
        "all => all.map(r => [r.closest('table').dataset.phase, r.dataset.partPath,"
        " ...['seconds', 'bound', 'ratio'].map(k => r.querySelector(`[data-${k}]`)?.dataset[k] ?? null)])",
    )
    bench = page.evaluate(
        "() => fetch('/api/bench', {headers: {Authorization: `Bearer ${sessionStorage.getItem('pellucid.token')}`}}).then(r => r.json())"
    )
    assert bench["running"] is None
    phases = bench["latest"]["pellucid/capitals"]["phases"]
    assert set(phases) == {"prefill", "decode"}
    for phase, path, seconds, bound, ratio in rows:
        part = next(p for p in phases[phase]["parts"] if p["path"] == path)
        assert (float(seconds), float(bound)) == (part["seconds"], part["bound"])
        assert (None if ratio is None else float(ratio)) == part["ratio"]
    assert len(rows) == sum(len(p["parts"]) for p in phases.values()) > 8


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.quick(2)
def test_every_line_is_in_the_language(tab: Tab, lang: str) -> None:
    tab.go(lang, view="budget", budget="of:deepseek-v3 context:4096 device:h200 train:true")
    tab.page.wait_for_selector("[data-training]")
    text, messages = tab.page.inner_text("main"), phrases(lang)
    for key in (
        "page.budget.situations",
        "page.budget.each.parameters",
        "page.budget.curves",
        "page.measured",
        "page.budget.train.moments",
    ):
        assert messages[key] in text


def test_colours_are_chosen_where_they_are_seen(tab: Tab) -> None:
    """The legend and the tile's own button both set the colours and show the setting, and the pictures follow."""
    tab.go(tensor="layers.0.attn.q")
    page = tab.page
    page.wait_for_selector("aside .frame canvas")
    read = "(c => c.toDataURL())(document.querySelector('aside .frame canvas'))"
    tab.settle()
    before = page.evaluate(read)
    assert page.get_attribute("aside [data-root]", "aria-pressed") == "true" and page.locator(".legend [data-root]").is_checked()
    page.click("aside [data-root]")
    tab.settle()
    assert page.evaluate(read) != before and not page.locator(".legend [data-root]").is_checked()
    page.locator(".legend [data-root]").check()
    tab.settle()
    assert page.evaluate(read) == before and page.get_attribute("aside [data-root]", "aria-pressed") == "true"
