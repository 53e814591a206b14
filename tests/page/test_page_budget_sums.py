"""Every number of Budget adds up: times of parts to the time at the head, on one device and over several; labels have one meaning.

A model is counted on one of four devices by turns, with PELLUCID_FULL=1 on each.
"""

import os
from itertools import product
from math import fsum
from typing import Any

import pytest
from playwright.sync_api import expect

import pellucid
from browser import Tab
from pellucid import catalog
from pellucid.messages import phrases
from served import Served

MODELS = ["gpt2-small", "llama-3.1-8b", "llama-3.1-70b", "deepseek-v3", "mixtral-8x7b", "gemma-2-9b"]
DEVICES = ["h200", "h100", "a100", "m4max"]
SPLITS = [None, "tp=2,pp=1,ep=1", "tp=1,pp=2,ep=1", "tp=2,pp=3,ep=2"]
MESSAGES = phrases("en")
FULL = bool(os.environ.get("PELLUCID_FULL"))


def apart(document: dict[str, Any]) -> list[str]:
    """Return a complaint for each sum of parts in a bill's document that is not its total."""
    over = document.get("ranks", {}).get("bounds")
    wrong = []
    for phase in ("prefill", "decode"):
        pace = (over or document["bounds"])[phase]
        stages = pace.get("stages", [pace["seconds"]])
        for i, total in enumerate(stages):
            summed = fsum(p["seconds"] for p in pace["parts"] if p.get("stage", 0) == i)
            wrong += [f"{phase}, stage {i}: {summed} of {total}"] if abs(summed - total) > 1e-9 * total else []
        wrong += [f"{phase}: {fsum(stages)} of {pace['seconds']}"] if abs(fsum(stages) - pace["seconds"]) > 1e-9 * pace["seconds"] else []
    return wrong + (["a device that has it all stands beside several"] if over and "decode" in document["bounds"] else [])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.quick(7)
def test_parts_add_up_to_the_head(api: Served, model: str) -> None:
    for device, split in product(DEVICES if FULL else [DEVICES[MODELS.index(model) % len(DEVICES)]], SPLITS):
        how = {"model": model, "context": 4096 if model != "gpt2-small" else 1024, "batch": 4, "device": device}
        reply = api.client.get("/api/count", params=how | ({} if split is None else {"ranks": split}))
        if reply.status_code == 200:
            assert apart(reply.json()) == [], (device, split)
        else:
            assert split is not None and reply.status_code == 400  # heads or experts that the ranks do not divide


def test_a_part_that_is_left_out_is_found(api: Served) -> None:
    document = api.client.get(
        "/api/count", params={"model": "deepseek-v3", "device": "h200", "ranks": "tp=1,pp=1,ep=8", "context": 4096}
    ).json()
    assert apart(document) == []
    mutants = [
        document["ranks"]["bounds"]["decode"]["parts"][1:],
        [p | {"seconds": 8 * p["seconds"]} for p in document["ranks"]["bounds"]["decode"]["parts"]],
    ]
    for parts in mutants:
        assert apart(
            document
            | {
                "ranks": document["ranks"]
                | {"bounds": document["ranks"]["bounds"] | {"decode": document["ranks"]["bounds"]["decode"] | {"parts": parts}}}
            }
        )


PLACES = [
    "of:deepseek-v3 context:131072 batch:8 dtype:fp8 cache:bfloat16 device:h200 ep:8",
    "of:llama-3.1-8b context:2048 device:h100",
    "of:llama-3.1-8b context:2048 device:h100 pp:2 tp:2",
]


@pytest.mark.parametrize("budget", PLACES)
@pytest.mark.quick(4)
def test_the_table_of_parts_ends_in_the_number_above(tab: Tab, budget: str) -> None:
    tab.go(view="budget", budget=budget)
    tab.page.wait_for_selector("[data-parts='decode'] tfoot")
    for phase in ("decode", "prefill"):
        table = tab.page.locator(f"[data-parts='{phase}']")
        each = [float(x) for x in table.locator("[data-seconds]").evaluate_all("all => all.map(c => c.dataset.seconds)")]
        total = float(table.locator("[data-sum-of='all']").get_attribute("data-value") or "nan")
        assert len(each) > 3 and fsum(each) == pytest.approx(total, rel=1e-9)
        heads = tab.page.locator(f"button[data-number$='bounds.{phase}.seconds']")
        assert heads.count() >= 1
        assert {float(x) for x in heads.evaluate_all("all => all.map(b => b.dataset.value)")} == {total}


def test_labels_have_one_meaning(tab: Tab) -> None:
    tab.go(view="budget", budget=PLACES[0])
    tab.page.wait_for_selector("[data-parts='decode'] tfoot")
    text = tab.page.inner_text("main")
    for key in ("page.budget.devices", "page.budget.batch", "page.budget.longest", "page.budget.fits.one"):
        assert MESSAGES[key] not in text, key  # labels of one device; this is a run over several
    assert MESSAGES["page.budget.batch.many"] in text
    names = tab.page.locator("[data-situation] strong").all_text_contents()
    assert len(set(names)) == len(names)
    options = tab.page.locator(".controls option").all_text_contents()
    assert not {"+", "–", "-"} & {o.strip() for o in options}


def test_budget_starts_from_what_runs(tab: Tab) -> None:
    """Bytes a token are one number in Cache and in Budget, of one dtype."""
    model = pellucid.load("pellucid/capitals", dtype="float32")
    tab.go(view="budget")
    number = tab.page.locator("td[data-number='cache.bytes_per_token']").first
    expect(number).to_have_attribute(
        "data-value", str(int(pellucid.count(model.name, dtype="float32", cache="float32")["cache.bytes_per_token"]))
    )
    each = number.get_attribute("data-value")
    tab.go(view="cache")
    expect(tab.page.locator(".sheet .note").first).to_contain_text(f"{int(each or 0):,}")


def test_another_model_is_counted_at_its_own_context(tab: Tab) -> None:
    tab.go(view="budget", budget="of:deepseek-v3 context:131072 device:h200")
    tab.page.wait_for_selector("[data-parts='decode'] tfoot")
    tab.page.locator(".controls select").first.select_option("gpt3-xl")
    expect(tab.page.locator("[data-column='gpt3-xl'] .kind").first).to_contain_text("24")
    assert tab.page.locator("main .kind.warn").count() == 0  # a busy machine may be said elsewhere


def test_an_entry_says_where_it_is_from(tab: Tab) -> None:
    tab.go(view="budget", budget="of:gpt2-small beside:gpt-3.5")
    entries = catalog.models()
    row = tab.page.locator("[data-said='page.budget.from'] td")
    expect(row.first).to_contain_text(entries["gpt2-small"]["source"])
    expect(row.nth(1)).to_contain_text(entries["gpt-3.5"]["organisation"])
    expect(tab.page.locator("[data-said='page.budget.notes']")).to_contain_text(catalog.notes(entries["gpt2-small"])[0])


def test_the_cache_of_a_source_is_counted(tab: Tab) -> None:
    """The cache of T5 counts the source's rows, the keys and values of cross attention, at every step."""
    name, prompt = "pellucid/capitals-t5", "The capital of France is Paris."
    run = pellucid.trace(pellucid.load(name, dtype="float32"), prompt, 3)
    tab.go(view="cache", model=name, prompt=prompt, steps=3, step=2)
    tab.page.wait_for_selector("[data-source-bytes]")
    parts = {s.path.rpartition(".")[0] for s in run if s.path.endswith(".cross.k")}
    shown = tab.page.locator("[data-part$='.cross']").evaluate_all("all => all.map(r => r.dataset.part)")
    assert set(shown) == parts
    total = int(tab.page.get_attribute("tr[data-step='2'] [data-total]", "data-total") or 0)
    layers = sum(int(float(x)) for x in tab.page.locator("[data-part] [data-bytes]").evaluate_all("all => all.map(c => c.dataset.bytes)"))
    assert layers == total
    assert f"{total:,}" in tab.page.inner_text("[data-source-bytes]")
    assert tab.page.inner_text("tr[data-step='0'] [data-rows]") == f"{len(run.ids)} + 1"
    assert f"{len(run.ids)}" in tab.page.inner_text(".sentence")


CONTROLS = """() => {
  const picture = document.querySelector("main svg, main canvas, main [data-part]");
  const before = [...document.querySelectorAll("main :is(input, select)")].filter(
    (e) => e.checkVisibility() && picture.compareDocumentPosition(e) & Node.DOCUMENT_POSITION_PRECEDING);
  return before.length;
}"""


def test_settings_that_few_need_stand_folded(tab: Tab) -> None:
    """Few fields come before the first picture; the others do if one of them is set."""
    tab.go(view="budget", budget="of:gpt2-small")
    tab.page.wait_for_selector("[data-part]")
    few = tab.page.evaluate(CONTROLS)
    tab.go(view="budget", budget="of:gpt2-small train:true")
    tab.page.wait_for_selector("[data-part]")
    assert few <= 12 and tab.page.evaluate(CONTROLS) >= few + 5
