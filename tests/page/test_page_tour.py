"""The page's tour in a real Chromium: every station is framed, and has the numbers of its run."""

import json
import math
import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import pellucid
from browser import Tab
from pellucid.analysis.training_film import curves
from pellucid.api.model import specimens
from pellucid.checkpoint.opening import recorded_runs
from pellucid.documents.number import number
from pellucid.messages import filled, phrases
from pellucid.tracing import Trace

PROMPT = "The capital of France is"
BLOCK = "layers.0"
FULL = bool(os.environ.get("PELLUCID_FULL"))
QUICK = {"pellucid/capitals-deepseek", "pellucid/capitals-t5", "pellucid/capitals-bert"}  # experts and latents, two sides, no next token


def station(tab: Tab) -> tuple[str, dict[str, Any], str]:
    """Return the station's key, its numbers and its sentence. Fails unless its place is framed."""
    tab.page.wait_for_selector(".tour .says")
    tab.page.wait_for_selector("[data-toured]")
    assert "{" not in tab.page.inner_text(".tour")
    key = tab.page.get_attribute(".tour", "data-station") or ""
    return key, json.loads(tab.page.get_attribute(".says", "data-said") or "{}"), tab.page.inner_text(".says")


def walk(tab: Tab) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield every station from this one on, by the button."""
    at = tab.page.locator(".tour .at")
    count = int(at.inner_text().split("/")[1])
    for n in range(1, count + 1):
        assert at.inner_text().endswith(f" {n}/{count}")
        yield station(tab)
        tab.page.click(".tour .next")
    tab.page.wait_for_selector(".tour", state="detached")


def percent(x: float) -> str:
    return f"{number(100 * x)}%"


def strongest(pattern: torch.Tensor) -> tuple[int, int, float]:
    """Return the head and the other token from which the last token takes most, and its share."""
    others = pattern[0, :, -1, :-1]
    head, seen = divmod(int(others.argmax()), others.shape[1])
    return head, seen, float(others[head, seen])


def expected(run: Trace) -> dict[str, dict[str, Any]]:
    """Return the numbers of every station, from the Python API."""
    value = {s.path: s.value for s in run if s.step == 0}
    pieces = ["The", "·capital", "·of", "·France", "·is"]
    head, seen, share = strongest(value[f"{BLOCK}.attn.pattern"])
    late_head, late_seen, late_share = strongest(value["layers.3.attn.pattern"])
    logits, picked = value["logits"][0, -1].double(), run.new[0]
    vocab, terms = f"{len(logits):,}", run[f"{BLOCK}.attn.scores"].terms
    assert terms is not None
    attended = {"head": head, "token": pieces[-1], "seen": pieces[seen]}
    cell = {"cell": f"0,{head},4,{seen}"}

    def first(path: str) -> str:
        return number(float(value[path][0, -1, 0]))

    def largest(path: str) -> str:
        return number(float(value[path].abs().max()))

    def chance(temperature: float) -> str:
        return percent(float((logits / temperature).softmax(0)[picked]))

    best = {"vocab": vocab, "piece": "·Paris"}
    return {
        "ids": {"count": len(run.ids), "piece": pieces[-1], "id": run.ids[-1]},
        "embed": {"token": pieces[-1], "width": 128, "value": first("embed")},
        "stream": {"tokens": 5, "width": 128},
        "norm": {"before": largest("start"), "after": largest(f"{BLOCK}.attn_norm")},
        "query": {"heads": 4, "width": 32},
        "scores": attended
        | cell
        | {"count": len(terms((0, head, 4, seen)).summands), "value": number(float(value[f"{BLOCK}.attn.scores"][0, head, 4, seen]))},
        "pattern": attended | cell | {"share": percent(share)},
        "mix": {"head": head, "token": pieces[-1], "width": 32, "value": number(float(value[f"{BLOCK}.attn.z"][0, -1, head, 0]))},
        "sum": {"token": pieces[-1], "before": first("start"), "added": first(f"{BLOCK}.attn"), "after": first(f"{BLOCK}.mid")},
        "neurons": {"width": 512, "token": pieces[-1], "count": int((value[f"{BLOCK}.ffn.neurons"][0, -1] > 0).sum())},
        "out": {
            "token": pieces[-1],
            "sum": f"{first(f'{BLOCK}.mid')} + {first(f'{BLOCK}.ffn')}",
            "after": first(f"{BLOCK}.out"),
        },
        "blocks": {"count": 4, "before": largest(f"{BLOCK}.out"), "after": largest("layers.3.out")},
        "logits": best | {"value": number(float(logits[picked]))},
        "answer": best | {"probability": chance(1)},
        "next": best | {"hot": 2, "probability": chance(2)},
        "heads": attended | {"block": "layers.3", "count": 4, "head": late_head, "seen": pieces[late_seen], "share": percent(late_share)},
        "change": {"piece": "·Paris", "value": number(float(logits[picked]))},
        "learning": learned(),
    }


def learned() -> dict[str, Any]:
    """Return the numbers of the station about the run that ships: its steps, and its loss at both ends of the curve."""
    (name,) = recorded_runs()
    run = pellucid.Run(name)
    _, losses, _ = curves(run.log)
    return {"name": run.recipe.name, "steps": f"{len(run.log):,}", "first": number(losses[0]), "last": number(losses[-1])}


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.quick(2)
def test_the_tour_says_the_numbers_of_the_run(tab: Tab, lang: str) -> None:
    run = pellucid.trace(pellucid.load("pellucid/capitals", dtype="float32"), PROMPT, terms=True)
    stations = expected(run)
    tab.go(lang=lang, prompt=PROMPT)
    tab.page.click("header .touring")
    seen = []
    for key, numbers, sentence in walk(tab):
        name = key.removeprefix("page.tour.")
        assert numbers == stations[name], name
        assert sentence == filled(phrases(lang)[key], **numbers)
        seen.append(name)
    assert seen == list(stations)


def test_what_a_station_says_is_what_its_place_shows(tab: Tab) -> None:
    tab.go(prompt=PROMPT)
    tab.page.click("header .touring")
    for key, numbers, _ in walk(tab):
        if key == "page.tour.scores":
            tab.page.wait_for_selector(f'#reading[data-cell="{numbers["cell"]}"]:not([data-value=""])')
            assert number(float(tab.page.get_attribute("#reading", "data-value") or "nan")) == numbers["value"]
        if key == "page.tour.answer":
            assert numbers["probability"] in tab.page.inner_text("tr.picked")
        if key == "page.tour.next":
            tab.page.wait_for_selector("[data-pick]")
            assert numbers["probability"] in tab.page.inner_text("tr[data-id] >> nth=0")
        if key == "page.tour.heads":
            tab.page.wait_for_selector("[data-weight]")
            assert tab.page.locator(".block.chosen .path").inner_text() == f"{numbers['block']}.attn"


@pytest.mark.parametrize("name", [n for n in specimens() if n != "pellucid/capitals" and (FULL or n in QUICK)])
@pytest.mark.quick(8)
def test_every_model_has_its_tour(tab: Tab, name: str) -> None:
    tab.go(model=name)
    tab.page.click("header .touring")
    keys = []
    for key, numbers, sentence in walk(tab):
        assert numbers and not re.search(r"NaN|undefined|∞|–|\{", sentence), sentence
        assert all(n != "" and (not isinstance(n, float) or math.isfinite(n)) for n in numbers.values())
        keys.append(key)
    assert len(keys) >= 15
    assert ("page.tour.experts" in keys) == (name == "pellucid/capitals-deepseek")


def test_the_tour_is_left_and_taken_up_again(tab: Tab) -> None:
    tab.go(prompt=PROMPT)
    page = tab.page
    page.click("header .touring")
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    assert station(tab)[0] == "page.tour.scores"
    page.keyboard.press("ArrowLeft")
    assert station(tab)[0] == "page.tour.query"
    page.keyboard.press("Enter")
    page.wait_for_selector('[data-station="page.tour.scores"]')
    page.keyboard.press("Escape")
    page.wait_for_selector(".tour[data-station]", state="detached")
    assert page.locator("[data-toured]").count() == 0
    tab.go(prompt="The capital of Japan is", view="budget")
    resume = page.locator("header .touring")
    assert resume.get_attribute("title") == phrases("en")["page.tour.resume"].format(n=6)
    resume.click()
    key, numbers, _ = station(tab)
    assert key == "page.tour.scores" and numbers["token"] == "·is"


def test_a_link_opens_the_tour_where_it_says(tab: Tab) -> None:
    tab.go(prompt=PROMPT, tour=1)
    assert station(tab)[0] == "page.tour.ids"
    tab.enter_prompt("The capital of Japan is")
    assert station(tab)[1]["id"] == pellucid.load("pellucid/capitals").tokenizer.encode("The capital of Japan is")[-1]
