"""Models without weights, and traces, open in Chromium: shapes, counts and Budget, and a sentence that values need weights."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, expect

import pellucid
from browser import Tab, open_tab, serve_from_command, serve_from_thread
from local_hub import Hub, serving
from pellucid import families
from pellucid.api.model import SPECIMENS, Model, make
from pellucid.messages import phrases
from pellucid.runs.answers import visible

LLAMA = {
    "model_type": "llama", "vocab_size": 320, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
}  # fmt: skip
LANTERN = """
from dataclasses import replace

from pellucid.families import llama
from pellucid.families.family import Family
from pellucid.families.names import Rule


def config(hf):
    cfg = llama.config(hf)
    return replace(cfg, layers=tuple(replace(layer, order="sandwich") for layer in cfg.layers))


RULES = (*llama.RULES, *(Rule(f"model.layers.{{i}}.after_{n}.*", f"layers.{{i}}.{n}_post_norm.*") for n in ("attn", "ffn")))
FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED)
"""
EDITED = "layers.0.ffn.neurons"
Opening = Callable[[Path, pytest.MonkeyPatch], Iterator[str]]


def written(place: Path) -> Path:
    place.mkdir()
    (place / "config.json").write_text(json.dumps(LLAMA))
    return place


@contextmanager
def by_name(place: Path, patch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str]]]:
    """Yield a name of the catalogue."""
    yield "gpt2-small", []


@contextmanager
def by_folder(place: Path, patch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str]]]:
    """Yield a folder with config.json alone."""
    yield str(written(place / "bare")), []


@contextmanager
def by_file(place: Path, patch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str]]]:
    """Yield a config.json."""
    yield str(written(place / "bare") / "config.json"), []


@contextmanager
def by_tokenizer(place: Path, patch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str]]]:
    """Yield a folder with config.json and a tokenizer, which takes a text."""
    shutil.copytree(SPECIMENS / "capitals-llama", place / "m", ignore=shutil.ignore_patterns("*.safetensors"))
    yield str(place / "m"), []


@contextmanager
def by_hub(place: Path, patch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str]]]:
    """Yield a hub id with --device meta, of which nothing but config.json is fetched."""
    with serving(Hub()) as hub:
        hub.add("owner/capitals", SPECIMENS / "capitals")
        patch.setenv("HF_ENDPOINT", hub.address)
        patch.setenv("HF_HOME", str(place / "hf"))
        patch.setenv("HF_HUB_OFFLINE", "0")
        yield "owner/capitals", ["--device", "meta"]
        assert set(hub.gets()) == {"config.json"}


WAYS = [by_name, by_folder, by_file, by_tokenizer, by_hub]
FULL = bool(os.environ.get("PELLUCID_FULL"))


@pytest.mark.parametrize("way", WAYS if FULL else [by_name, by_tokenizer, by_hub])
@pytest.mark.quick(5)
def test_shapes_counts_and_budget_without_weights(
    way: Callable[..., Iterator[tuple[str, list[str]]]], browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with way(tmp_path, monkeypatch) as (name, more), serve_from_command(name, *more) as address, open_tab(browser, address) as tab:  # type: ignore[attr-defined]
        config = str(SPECIMENS / "capitals") if way is by_hub else name
        looked_at(tab, name, pellucid.count(config), ("en", "zh") if way is by_name else ("en", "zh")[WAYS.index(way) % 2 :][:1])


def looked_at(tab: Tab, name: str, bill: "pellucid.counting.Bill", languages: tuple[str, ...] = ("en", "zh")) -> None:
    """Check that Life has tensors with their shapes, a tile opens without values, and Budget is the bill."""
    page = tab.page
    for lang in languages:
        tab.go(lang)
        messages = phrases(lang)
        sentence = messages["page.shapes"].format(model=name)
        assert sentence in page.inner_text("[data-shapes]")
        assert [a.split("=")[-1] for a in page.eval_on_selector_all("main nav a", "all => all.map(a => a.getAttribute('href'))")] == [
            "map", "life", "budget", "learning", "tokens", "exhibits",
        ]  # fmt: skip
        attn = bill.config.layers[0].attn
        tokens = int(page.locator(".token").count())
        card = page.locator("[data-path='layers.0.attn.q'] .axes").inner_text().split()
        axes = "".join(card)
        assert axes == f"T{tokens}H{attn.heads}K{attn.width}" if hasattr(attn, "width") else axes
        page.click("[data-path='layers.0.attn.q']")
        expect(page.locator("aside [data-shapes]")).to_have_text(messages["page.shapes.tensor"])
        page.keyboard.press("Escape")
        page.locator("[data-shapes] button").first.click()
        page.wait_for_selector("td[data-number='parameters.total'][data-value]")
        for number in ("parameters.total", "bytes.total", "cache.bytes_per_token", "flops.prefill", "flops.decode"):
            assert page.get_attribute(f"td[data-number='{number}']", "data-value") == str(int(bill[number])), number
        assert sentence in page.inner_text("[data-shapes]")
        assert messages["page.measured.weights"] in page.inner_text("main") and page.locator("[data-measure]").count() == 0
    page.click("[data-part='attn']")
    page.wait_for_selector("[data-part='layers.0.attn.q.weight'], [data-part='layers.0.attn.q_b.weight']")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record a trace of two steps, of a specimen that is not the first; one of its tensors is edited."""
    place = tmp_path_factory.mktemp("trace") / "t"
    model = pellucid.load("pellucid/capitals-llama")
    pellucid.trace(model, "The capital of France is", 2, edit={EDITED: lambda x: x * 0.5}).save(place)
    return place


def test_a_trace_shows_its_own_values(recorded: Path, browser: Browser) -> None:
    trace, model = pellucid.load_trace(recorded), pellucid.load("pellucid/capitals-llama")
    block = [s for s in pellucid.trace(model, "The capital of France is") if s.path.startswith("layers.1.")]
    with serve_from_command(str(recorded)) as address, open_tab(browser, address) as tab:
        for lang in ("en", "zh"):
            tab.go(lang)
            page = tab.page
            assert page.locator("#model").input_value() == "pellucid/capitals-llama"
            assert page.locator("#prompt").input_value() == "The capital of France is"
            assert [int(x) for x in page.locator(".token .id").all_inner_texts()] == trace.ids + trace.new
            assert page.locator("[data-shapes]").count() == 0
            line = page.locator('[data-block="layers.1"] [data-parameters]')
            assert line.get_attribute("data-flops") == str(sum(s.flops for s in block)) and line.inner_text().endswith("FLOP")
            assert line.get_attribute("data-parameters") == str(sum(p.numel() for p in model.module.layers[1].parameters()))
        for path, at in (("layers.1.attn.q", (0, 2, 1, 3)), (EDITED, (0, 4, 7)), ("logits", (0, 4, 11))):
            reading = tab.open_cell(path, at)
            value = trace.all(path)[0].value[at]
            assert torch.tensor(float(reading.value), dtype=value.dtype) == value, path
            assert reading.bytes["received"] == reading.bytes["source"]
            says = "page.given" if path == EDITED else "page.unsummed"
            expect(page.locator("aside > p.soft")).to_have_text(phrases("en")[says])
        tab.go(view="next")
        expect(page.locator("[data-pick]")).to_have_attribute("data-pick", str(trace.new[0]))
        tab.settle()
        assert page.locator("tr[data-layer]").count() > 4
        tab.go(view="budget")
        bill = pellucid.count("pellucid/capitals-llama", dtype="float32", cache="float32")
        page.wait_for_selector("td[data-number='parameters.total'][data-value]")
        assert page.get_attribute("td[data-number='cache.bytes']", "data-value") == str(int(bill["cache.bytes"]))


def test_a_trace_of_a_model_that_is_not_here(folder: Path, tmp_path: Path, browser: Browser) -> None:
    """Its values are shown; its Budget says that the model is not here, and the catalogue's models can be counted."""
    pellucid.trace(pellucid.load(folder), "The").save(tmp_path / "t")
    trace = pellucid.load_trace(tmp_path / "t")
    with serve_from_command(str(tmp_path / "t")) as address, open_tab(browser, address, refusals=(400, 404)) as tab:
        tab.go()
        assert tab.page.locator("#model").input_value() == str(folder)
        pieces = [visible(pellucid.load(folder).tokenizer.pieces([i])[0]) for i in trace.ids + trace.new]
        assert tab.page.locator(".token .piece").all_inner_texts() == pieces
        line = tab.page.locator('[data-block="layers.1"] [data-flops]')
        assert line.get_attribute("data-parameters") is None and "FLOP" in line.inner_text() and "W" not in line.inner_text()
        reading = tab.open_cell("layers.0.attn.q", (0, 0, 1, 2))
        assert float(reading.value) == pytest.approx(float(trace["layers.0.attn.q"].value[0, 0, 1, 2]), rel=1e-7)
        tab.go(view="next")
        tab.page.wait_for_selector(".stages tr[data-id]")
        best = trace.last_logits().argsort(descending=True, stable=True)[:5].tolist()
        assert [int(row.get_attribute("data-id") or -1) for row in tab.page.locator(".stages tr[data-id]").all()[:5]] == best
        tab.go(view="budget")
        expect(tab.page.locator("[data-column]").first).to_contain_text(str(folder))
        expect(tab.page.locator("[data-column]").first).to_contain_text("pellucid/capitals")
        tab.page.click("[data-situation]")
        tab.page.wait_for_selector("[data-ranks='8']")


def random_model(folder: Path) -> Model:
    """Save and load a random model without a tokenizer."""
    made = make({**LLAMA, "vocab_size": 512}, dtype=torch.float32)
    draw = torch.Generator().manual_seed(5)
    for p in made.module.parameters():
        p.data = torch.randn(p.shape, generator=draw) * 0.3
    made.save(folder)
    return pellucid.load(folder)


def test_a_token_without_a_piece_has_its_id_in_every_place(tmp_path: Path, browser: Browser) -> None:
    """Of a model without a tokenizer: its steps, its likeliest tokens and its cache leave no word empty."""
    model = random_model(tmp_path)
    ids = [f"#{id}" for id in pellucid.trace(model, [3, 5, 7], 2).new]
    with serve_from_thread(str(tmp_path)) as address, open_tab(browser, address) as tab:
        page = tab.page
        tab.go(prompt="#3 5 7", steps=2)
        assert page.locator(".steps button bdi").all_inner_texts() == [f"→ {id}" for id in ids]
        assert page.inner_text("[data-picked] bdi") == ids[0]
        words = page.locator("tr[data-id]").evaluate_all("all => all.map(e => [`#${e.dataset.id}`, e.querySelector('bdi').innerText])")
        assert len(words) > 5 and all(id == word for id, word in words)
        tab.go(view="cache", prompt="#3 5 7", steps=2)
        page.wait_for_selector("main li > bdi")
        assert page.locator("main li > bdi").all_inner_texts()[:4] == ["#3", "#5", "#7", ids[0]]
        tab.go(view="next", prompt="#3 5 7", steps=2, trial="temperature:0.5")
        page.wait_for_selector("[data-layer]")
        tab.settle()
        assert ids[0] in page.inner_text("[data-took]")
        for key in ("page.added", "page.lens.rank"):
            assert page.get_by_text(phrases("en")[key].replace("{piece}", ids[0])).count() > 0
        tab.go(view="attention", prompt="#3 5 7")
        page.wait_for_selector("[data-stage=scores]")
        tab.settle()
        assert page.locator("[data-stage=scores] .name.end").all_text_contents() == ["#3", "#5", "#7"]


def test_change_of_a_model_without_a_tokenizer(tmp_path: Path, browser: Browser) -> None:
    """Its prompt is ids. What needs words is not offered, and a view that is not there is named."""
    model = random_model(tmp_path / "a long way down" / "to a folder" / "lantern")
    zeroed = pellucid.trace(model, [3, 5, 7], edit=[pellucid.zero("layers.0.attn.z", H=0)])
    edits = json.dumps([["layers.0.attn.z", "0,:,0,:", "to", "0"]])
    with serve_from_thread(model.name) as address, open_tab(browser, address, viewport={"width": 390, "height": 844}) as tab:
        page = tab.page
        tab.go(view="change", prompt="#3 5 7", edits=edits)
        tab.settle()
        assert page.locator("main nav a[aria-current]").inner_text() == phrases("en")["page.view.change"]
        assert str(int(zeroed.last_logits().argmax())) in [row.get_attribute("data-id") for row in page.locator("tr[data-id]").all()]
        assert page.locator("option[value=prompt], #sweep-clean, [data-missing]").count() == 0
        shown = page.locator("#model option:checked").inner_text()
        assert shown.startswith("…/lantern") and page.locator("#model").get_attribute("title") == model.name
        for lang in ("en", "zh"):
            tab.go(lang, view="experts", prompt="#3 5 7")
            sentence = phrases(lang)["page.view.missing"]
            words = {"view": phrases(lang)["page.view.experts"], "shown": phrases(lang)["page.view.map"]}
            expect(page.locator("[data-missing=experts]")).to_have_text(sentence.format(**words))


def test_a_family_that_the_page_was_built_without(tmp_path: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """Life has every tensor and the picked token of a family whose file was added after the build."""
    (tmp_path / "families").mkdir()
    (tmp_path / "families" / "lantern.py").write_text(LANTERN)
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path / "families")])
    model = make({**LLAMA, "model_type": "lantern", "vocab_size": 8192}, dtype=torch.float32)
    draw = torch.Generator().manual_seed(5)
    for p in model.module.parameters():
        p.data = torch.randn(p.shape, generator=draw) * 0.3
    model.save(tmp_path / "m")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SPECIMENS / "capitals-llama" / name, tmp_path / "m")
    trace = pellucid.trace(pellucid.load(tmp_path / "m", dtype="float32"), "The capital of France is", terms=True)
    with serve_from_thread(str(tmp_path / "m")) as address, open_tab(browser, address) as tab:
        tab.go(prompt="The capital of France is")
        page = tab.page
        assert page.locator("[data-picked]").get_attribute("data-picked") == str(trace.new[0])
        for closed in iter(lambda: page.locator('[data-block][aria-expanded="false"]'), None):
            if closed.count() == 0:
                break
            closed.first.click()
        shown = page.locator(".river [data-path]").evaluate_all("cards => cards.map(c => c.dataset.path)")
        assert sorted(shown) == sorted(s.path for s in trace) and "layers.0.ffn_post_norm" in shown
        seen = trace["layers.2.ffn_post_norm"]
        assert seen.terms is not None
        reading = tab.open_cell("layers.2.ffn_post_norm", (0, 4, 7))
        assert float(reading.value) == pytest.approx(float(seen.value[0, 4, 7]), rel=1e-6)
        assert tab.formula_sum() == seen.terms((0, 4, 7)).total()
