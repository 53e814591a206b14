"""How a token becomes a vector, drawn: each strip is a row of the run's own tensors, and the last one is what enters the first block."""

from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, expect

import pellucid
from browser import Tab, address_of, download_page, open_file, open_offline_tab, open_tab, serve_from_thread
from pellucid.api.model import Model
from pellucid.messages import phrases
from pellucid.tracing import Trace
from tiny import random_folder

PROMPT = "The capital of France is"
NAMES = ("capitals", "capitals-llama", "capitals-bert", "capitals-t5")
DRAWN = """all => all.map(g => ({ ...g.dataset, taken: { ...g.querySelector("[data-taken]")?.dataset },
  numbers: [...g.querySelectorAll("[data-channel]")].map(e => +e.dataset.number),
  fills: [...g.querySelectorAll("[data-channel]")].map(e => e.getAttribute("fill")) }))"""
# The tensors that a token becomes, in order, with the sign before each; by hand, from the papers.
ENTERS = {
    "capitals": ("", {"embed": "row", "positions": "plus", "start": "equals"}, "added"),
    "capitals-llama": ("", {"embed": "row"}, "turned"),
    "capitals-bert": (
        "",
        {"embed": "row", "positions": "plus", "start": "equals", "types": "plus", "typed": "equals", "embed_norm": "becomes"},
        "added",
    ),
    "capitals-t5": ("encoder", {"source": "row"}, "distances"),
}


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    return {name: pellucid.load(f"pellucid/{name}", dtype="float32") for name in NAMES}


def drawing(tab: Tab, stack: str = "") -> list[dict[str, Any]]:
    """Return the strips of a stack's drawing."""
    tab.page.wait_for_selector(f'[data-enters="{stack}"] [data-channel]')
    tab.settle()
    strips: list[dict[str, Any]] = tab.page.eval_on_selector_all(f'[data-enters="{stack}"] [data-entry]', DRAWN)
    return strips


def same(strips: list[dict[str, Any]], trace: Trace, row: int) -> None:
    """Compare every number of the strips, and their lengths, with the trace's."""
    for strip in strips:
        own = trace[strip["entry"]].value[0, row]
        assert len(strip["numbers"]) == min(own.numel(), 160) > 90
        assert torch.equal(torch.tensor(strip["numbers"]), own[: len(strip["numbers"])].float())
        assert float(strip["length"]) == pytest.approx(float(own.double().norm()), rel=1e-9)


@pytest.mark.parametrize("view", ["map", "life"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.quick(5)
def test_each_strip_is_a_row_that_ran(tab: Tab, models: dict[str, Model], name: str, view: str) -> None:
    stack, signs, way = ENTERS[name]
    model = models[name]
    prompt = f"{PROMPT} [MASK]." if name == "capitals-bert" else PROMPT
    trace = pellucid.trace(model, prompt)
    row = 3
    tab.go(view=view, model=model.name, prompt=prompt, position=row)
    strips = drawing(tab, stack)
    assert {strip["entry"]: strip["sign"] for strip in strips} == signs
    same(strips, trace, row)
    with pytest.raises(AssertionError):
        same(strips, trace, row - 1)  # the mutant: another token's
    assert strips[0]["taken"]["taken"] == str(trace.ids[row])
    if "positions" in signs:
        assert strips[1]["taken"] == {"taken": str(row), "rows": str(model.config.positions)}
    assert tab.page.get_attribute(f'[data-enters="{stack}"] [data-way]', "data-way") == way
    if view == "map":  # the last strip is as long as the map says that what enters is
        started = tab.page.get_attribute(f"[data-start='0,{row}']", "data-norm")
        assert float(started or "nan") == pytest.approx(float(strips[-1]["length"]), rel=1e-6)


def test_what_is_added_adds_up(tab: Tab) -> None:
    tab.go(view="map", prompt=PROMPT)
    embed, position, start = drawing(tab)
    assert torch.equal(torch.tensor(start["numbers"]), torch.tensor(embed["numbers"]) + torch.tensor(position["numbers"]))
    assert len({*embed["fills"], *position["fills"]}) > 20  # colours are of the numbers
    largest = max(range(len(start["numbers"])), key=lambda i: abs(start["numbers"][i]))
    near = [i for i, x in enumerate(start["numbers"]) if x == start["numbers"][largest]]
    assert all(start["fills"][i] == start["fills"][largest] for i in near)


def test_a_channel_is_read_and_opens_its_sum(tab: Tab) -> None:
    tab.go(view="map", prompt=PROMPT)
    start = drawing(tab)[2]
    tab.page.focus(".enters [role=application]")
    for _ in range(3):
        tab.page.keyboard.press("ArrowRight")
    line = tab.page.inner_text("[data-under='2']")
    assert line.startswith("channel 2: embed ") and " + positions " in line and " = start " in line
    tab.page.locator("[data-entry=start] [data-channel='2']").click()
    tab.page.wait_for_selector('#reading[data-cell="0,4,2"]:not([data-value=""])')
    assert float(tab.page.get_attribute("#reading", "data-value") or "nan") == start["numbers"][2]


def test_the_first_column_of_the_map_opens_it(tab: Tab, models: dict[str, Model]) -> None:
    """By the pointer and by keys; a token that was written, too, has its own row."""
    trace = pellucid.trace(models["capitals"], PROMPT, 2)
    tab.go(view="map", prompt=PROMPT, steps=2, step=1)
    tab.page.wait_for_selector("[data-start='0,5']")
    tab.settle()
    tab.page.locator("[data-start='0,1']").hover()
    assert phrases("en")["page.enters.open"] in tab.page.inner_text("#pointed")
    tab.page.locator("[data-start='0,1']").click()
    expect(tab.page.locator(".enters")).to_have_attribute("data-row", "1")
    strips = drawing(tab)
    assert strips[0]["taken"]["taken"] == str(trace.ids[1]) and strips[1]["taken"]["taken"] == "1"
    tab.page.locator("[data-start='0,5']").click()
    expect(tab.page.locator(".enters")).to_have_attribute("data-step", "1")
    strips = drawing(tab)
    assert strips[0]["taken"]["taken"] == str(trace.new[0]) and strips[1]["taken"]["taken"] == "5"
    tab.page.focus("[role=application][aria-describedby=pointed]")
    for key in ("ArrowRight", "ArrowLeft", "ArrowUp", "Enter"):
        tab.page.keyboard.press(key)
    assert "view=map" in address_of(tab.page) or "view" not in address_of(tab.page)
    expect(tab.page.locator(".enters")).to_have_attribute("data-row", "4")


def test_turned_positions_lead_to_the_hands(tab: Tab) -> None:
    tab.go(view="map", model="pellucid/capitals-llama", prompt=PROMPT)
    drawing(tab)
    tab.page.click("[data-way=turned] button")
    tab.page.wait_for_selector(".dials [data-pair]")
    assert "view=attention" in address_of(tab.page)


SCALED = {
    "model_type": "gemma", "hidden_size": 96, "vocab_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 32, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
}  # fmt: skip
SLOPED = {
    "model_type": "bloom", "hidden_size": 96, "vocab_size": 64, "n_layer": 1, "n_head": 4,
    "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("hf", "signs", "way"),
    [(SCALED, {"embed": "row", "scaled": "becomes"}, "turned"), (SLOPED, {"embed": "row", "embed_norm": "becomes"}, "slopes")],
    ids=["scale", "norm"],
)
def test_a_scale_and_a_norm_are_drawn(browser: Browser, tmp_path: Any, hf: dict[str, Any], signs: dict[str, str], way: str) -> None:
    random_folder(hf, tmp_path)
    model = pellucid.load(str(tmp_path), dtype="float32")
    trace = pellucid.trace(model, [5, 7, 9])
    with serve_from_thread(str(tmp_path), dtype="float32") as address, open_tab(browser, address) as tab:
        tab.go(view="map", prompt="#5 7 9")
        strips = drawing(tab)
        assert {strip["entry"]: strip["sign"] for strip in strips} == signs
        same(strips, trace, 2)
        assert tab.page.get_attribute("[data-way]", "data-way") == way
        assert tab.page.locator(".made").count() == 1  # its formula


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_it_is_drawn_on_a_narrow_screen(tab: Tab, lang: str) -> None:
    tab.page.set_viewport_size({"width": 390, "height": 844})
    tab.go(lang, view="map", prompt=PROMPT)
    strips = drawing(tab)
    assert len(strips) == 3 and len(strips[0]["numbers"]) >= 40
    assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert phrases(lang)["page.enters.added"] in tab.page.inner_text(".enters")


def test_a_saved_page_has_it(browser: Browser, address: str, tmp_path: Any) -> None:
    file = download_page(browser, address, tmp_path, view="map", prompt=PROMPT)
    with open_offline_tab(browser, file) as tab:
        open_file(tab, file, "[data-enters] [data-channel]")
        assert [strip["entry"] for strip in drawing(tab)] == ["embed", "positions", "start"]
