"""The map: each of its marks is a number of the run, it generates, and a column opens into its cards."""

import json
import math
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, expect

import pellucid
from browser import Tab, address_of, download_page, open_file, open_offline_tab, open_tab
from pellucid.analysis.lens import lens
from pellucid.api.model import Model
from pellucid.documents.run_map import FAINT
from pellucid.messages import phrases
from pellucid.runs.examples import example
from pellucid.tracing import Trace

PROMPT = "The capital of France is"
NAMES = ("capitals", "capitals-llama", "reader", "capitals-deepseek", "capitals-prefix", "capitals-bert", "capitals-t5")
EACH = "els => els.map(e => ({...e.dataset, wide: e.getAttribute('stroke-width'), opacity: e.getAttribute('fill-opacity')}))"


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    return {name: pellucid.load(f"pellucid/{name}", dtype="float32") for name in NAMES}


@pytest.fixture(scope="module")
def still(browser: Browser, address: str) -> Iterator[Tab]:
    """Open a tab that prefers reduced motion."""
    with open_tab(browser, address, reduced_motion="reduce") as tab:
        yield tab


def marks(tab: Tab, selector: str) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = tab.page.eval_on_selector_all(f"svg[data-map] {selector}", EACH)
    return rows


def prompt_of(name: str, model: Model) -> str:
    text = example(model.name, {"capitals-bert": "encoder", "capitals-t5": "encoder-decoder"}.get(name, "decoder"))
    return text or PROMPT


def blocks(trace: Trace) -> list[list[str]]:
    """Return the paths of each stack's blocks, by hand: the tensors' own names up to the number."""
    by_stack: dict[str, list[str]] = {}
    for s in trace:
        words = s.path.split(".")
        if "layers" in words[:-2]:
            path = ".".join(words[: words.index("layers") + 2])
            own = by_stack.setdefault(path.rpartition("layers")[0], [])
            if path not in own:
                own.append(path)
    return list(by_stack.values())


def norm(trace: Trace, path: str, row: int) -> float:
    return float(trace[path].value[0, row].double().norm())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.quick(11)
def test_every_mark_is_a_number_of_the_run(still: Tab, models: dict[str, Model], name: str) -> None:
    model = models[name]
    prompt = prompt_of(name, model)
    trace = pellucid.trace(model, prompt)
    still.go(view="map", model=model.name, prompt=prompt)
    still.page.wait_for_selector("svg[data-map]")
    still.settle()
    stacks = blocks(trace)
    after = "ffn_norm" if name == "capitals-bert" else "out"
    bands = {one["cell"]: one for one in marks(still, "[data-cell]")}
    feeds = {one["feed"]: float(one["ratio"]) for one in marks(still, "[data-feed]")}
    rows = [trace[f"{paths[0]}.{after}"].shape[1] for paths in stacks]
    assert len(bands) == sum(n * len(paths) for n, paths in zip(rows, stacks, strict=True))
    norms = {}
    for s, paths in enumerate(stacks):
        for i, path in enumerate(paths):
            for n in range(rows[s]):
                cell = f"{s},{i},{n}"
                norms[cell] = norm(trace, f"{path}.{after}", n)
                assert float(bands[cell]["norm"]) == pytest.approx(norms[cell], rel=1e-6)
                stream = trace[f"{path}.out"].inputs[0]
                assert feeds[cell] == pytest.approx(norm(trace, f"{path}.ffn", n) / norm(trace, stream, n), rel=1e-6)
    starts = [float(one["norm"]) for one in marks(still, "[data-start]")]
    least, most = min(starts + list(norms.values())), max(starts + list(norms.values()))
    for cell, one in bands.items():  # as bright as the scale says
        assert float(one["opacity"]) == pytest.approx(0.14 + 0.86 * math.log(norms[cell] / least) / math.log(most / least), abs=1e-6)
    widths = set()
    for kind, part in (("edge", "attn"), ("crossed", "cross")):
        drawn = {one[kind]: one for one in marks(still, f"[data-{kind}]")}
        for s, paths in enumerate(stacks):
            for i, path in enumerate(paths):
                name = f"{path}.{part}.pattern"
                pattern = trace[name].value[0].double().mean(0) if name in trace else torch.zeros(0, 0)
                own = {key: one for key, one in drawn.items() if key.startswith(f"{s},{i},")}
                for key, one in own.items():
                    query, at = map(int, key.split(",")[2:])
                    assert float(one["share"]) == pytest.approx(float(pattern[query, at]), rel=1e-5)
                    widths.add(round(float(one["wide"]) / float(one["share"]), 4))
                if part == "attn":  # none that is stronger was left out
                    pattern = pattern - torch.diag(pattern.diagonal())
                left = [float(x) for q, line in enumerate(pattern) for k, x in enumerate(line) if f"{s},{i},{q},{k}" not in own]
                assert max(left, default=0) <= max(FAINT, min((float(one["share"]) for one in own.values()), default=0)) + 1e-9
    assert len(widths) == 1  # one scale for every ribbon
    row = trace.blanks[0] if trace.blanks else -1
    words = [one["word"] for one in marks(still, "[data-word]")]
    assert words[-len(stacks[-1]) :] == [str(int(logits.argmax())) for _, logits in lens(model, trace, 0, row)[1:]]
    shares = trace["logits"].value[0, row].double().softmax(-1)
    for one in still.page.eval_on_selector_all("[data-candidate]", "els => els.map(e => ({...e.dataset}))"):
        assert float(one["probability"]) == pytest.approx(float(shares[int(one["candidate"])]), abs=1e-5)
    assert int(still.page.get_attribute("[data-answer]", "data-answer") or -1) == trace.new[0]


def test_a_wrong_number_would_be_seen(still: Tab, models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    def halved(route: Any) -> None:
        document = route.fetch().json()
        document["stacks"][0]["blocks"][1]["edges"][0]["share"] /= 2
        route.fulfill(json=document)

    still.page.route("**/map?*", halved)
    try:
        with pytest.raises(AssertionError):
            test_every_mark_is_a_number_of_the_run(still, models, "capitals")
    finally:
        still.page.unroute("**/map?*")


COLOURED = """(letter) => {
  const own = getComputedStyle(document.documentElement).getPropertyValue(`--${letter}`).trim(), probe = document.createElement("i");
  probe.style.color = own;
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  const pieces = [...document.querySelectorAll("svg[data-map] .piece")].flatMap((e, n) => getComputedStyle(e).fill === colour ? [n] : []);
  const paths = [...document.querySelectorAll("svg[data-map] .ribbon")].filter((e) => getComputedStyle(e).stroke === colour);
  return [pieces, paths.map((e) => e.dataset.edge)];
}"""


def coloured_as_it_reads(still: Tab, trace: Trace) -> None:
    """Check the letters' colours of a map that no pointer is on: the answer's token, what it reads in the last block, and the ribbons."""
    (*_, last), rows = blocks(trace)[-1], len(trace.ids)
    pattern = trace[f"{last}.attn.pattern"].value[0, :, rows - 1].double().mean(0)
    keys = [k for k in range(rows) if k != rows - 1 and float(pattern[k]) >= FAINT]
    seen = {letter: still.page.evaluate(COLOURED, letter) for letter in "qkv"}
    block = len(blocks(trace)[-1]) - 1
    assert seen["q"] == [[rows - 1], []] and seen["k"] == [keys, []]
    assert seen["v"][0] == [] and sorted(seen["v"][1]) == sorted(f"0,{block},{rows - 1},{k}" for k in keys)


@pytest.mark.parametrize("name", ["capitals", "capitals-llama"])
def test_the_first_picture_shows_who_reads_whom(still: Tab, models: dict[str, Model], name: str) -> None:
    trace = pellucid.trace(models[name], PROMPT)
    still.go(view="map", model=models[name].name, prompt=PROMPT)
    still.page.wait_for_selector("svg[data-map]")
    still.settle()
    coloured_as_it_reads(still, trace)
    still.page.locator("[data-cell='0,0,1']").hover()
    with pytest.raises(AssertionError):
        coloured_as_it_reads(still, trace)
    still.page.mouse.move(2, 2)
    coloured_as_it_reads(still, trace)


def test_it_is_the_first_view_and_says_what_it_is(still: Tab) -> None:
    still.go(view="", prompt=PROMPT)
    still.page.wait_for_selector("svg[data-map]")
    assert still.page.get_attribute("main nav a[aria-current]", "href") == "/#view=map" or "view=map" in str(
        still.page.get_attribute("main nav a[aria-current]", "href")
    )
    sizes = still.page.evaluate("[...document.querySelectorAll('main *')].map(e => parseFloat(getComputedStyle(e).fontSize))")
    answer = still.page.evaluate("parseFloat(getComputedStyle(document.querySelector('[data-answer]')).fontSize)")
    assert answer == max(sizes)
    assert "pellucid/capitals" in still.page.inner_text(".what")


def test_it_generates_and_a_candidate_is_forced(still: Tab, models: dict[str, Model]) -> None:
    page, model = still.page, models["capitals"]
    new = pellucid.trace(model, PROMPT, 2).new
    still.go(view="map", prompt=PROMPT)
    before = page.locator(".generate .strong").bounding_box()
    page.click(".generate .strong")
    expect(page.locator("svg[data-map]")).to_have_attribute("data-step", "1")
    assert (
        page.locator(".generate .strong").bounding_box() == before and page.locator(".steps button").count() == 2
    )  # it may be pressed again
    assert page.get_attribute("[data-answer]", "data-answer") == str(new[1]) and "steps=2" in address_of(page)
    assert page.locator("[data-start]").count() == 6  # the new token has its row
    page.locator(".buttons button").nth(2).click()
    expect(page.locator("svg[data-map]")).to_have_attribute("data-step", "0")
    second = page.locator("[data-candidate]").nth(1)
    id = int(second.get_attribute("data-candidate") or -1)
    second.click()
    expect(page.locator("svg[data-map]")).to_have_attribute("data-step", "1")
    assert f"forced=0%3A{id}" in address_of(page)
    logits = pellucid.trace(model, [*pellucid.trace(model, PROMPT).ids, id])["logits"].value[0, -1]
    assert page.get_attribute("[data-answer]", "data-answer") == str(int(logits.argmax()))


def test_settings_of_sampling_are_sent(still: Tab) -> None:
    still.go(view="map", prompt=PROMPT)
    with still.page.expect_request(lambda r: r.method == "POST" and r.url.split("?")[0].endswith("/runs")) as sent:
        still.page.fill("[data-sampling='temperature']", "2")
        still.page.press("[data-sampling='temperature']", "Enter")
    assert json.loads(sent.value.post_data or "{}")["sampling"]["temperature"] == 2


def test_a_column_opens_its_cards(still: Tab) -> None:
    still.go(view="map", prompt=PROMPT)
    band = still.page.locator("[data-cell='0,2,1']")
    band.hover()
    assert "layers.2" in still.page.inner_text("#pointed")
    band.click()
    still.page.wait_for_selector("[data-block='layers.2'][aria-expanded='true']")
    assert "view=life" in address_of(still.page)


def test_the_keyboard_reads_and_opens(still: Tab) -> None:
    still.go(view="map", prompt=PROMPT)
    still.page.focus("[role=application]")
    for key in ("ArrowRight", "ArrowRight", "ArrowUp"):
        still.page.keyboard.press(key)
    assert "·France" in still.page.inner_text("#pointed") and "layers.1" in still.page.inner_text("#pointed")
    still.page.keyboard.press("Enter")
    still.page.wait_for_selector("[data-block='layers.1'][aria-expanded='true']")


def test_why_measures_each_part(still: Tab, models: dict[str, Model]) -> None:
    model = models["capitals"]
    plain = pellucid.trace(model, PROMPT)
    id = plain.new[0]
    still.go(view="map", prompt=PROMPT, why="true")
    still.page.wait_for_selector("[data-done='20']")
    parts = {p["part"]: p for p in still.page.eval_on_selector_all("[data-part]", "els => els.map(e => ({...e.dataset}))")}
    assert len(parts) == 20

    def effect(path: str, **at: int) -> float:
        changed = pellucid.trace(model, PROMPT, edit=[pellucid.zero(path, **at)])
        return float(changed["logits"].value[0, -1, id] - plain["logits"].value[0, -1, id])

    assert float(parts["layers.0.attn 0"]["measured"]) == pytest.approx(effect("layers.0.attn.z", H=0), abs=2e-4)
    assert float(parts["layers.2.ffn"]["measured"]) == pytest.approx(effect("layers.2.ffn"), abs=2e-4)
    largest = max(parts, key=lambda p: abs(float(parts[p]["measured"])))
    assert still.page.locator("[data-said]").first.get_attribute("data-said") == largest


def test_a_saved_page_has_the_map(browser: Browser, address: str, tmp_path: Path) -> None:
    file = download_page(browser, address, tmp_path, view="map", prompt=PROMPT, steps=2, step=1)
    with open_tab(browser, address) as opened, open_offline_tab(browser, file) as tab:
        opened.go(view="map", prompt=PROMPT, steps=2, step=1)
        open_file(tab, file, "svg[data-step='1']")
        opened.page.wait_for_selector("svg[data-step='1']")
        for one in (tab, opened):
            expect(one.page.locator("[data-waits]")).to_have_count(0)
        for selector in ("[data-cell]", "[data-edge]", "[data-feed]", "[data-word]"):
            assert marks(tab, selector) == marks(opened, selector) != []


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_whole_map_is_on_the_first_screen(tab: Tab, lang: str) -> None:
    """On a first visit, with the story's offer above it: every row, the words below the columns, and what can be done with it."""
    tab.page.set_viewport_size({"width": 1440, "height": 900})
    tab.go(lang, prompt=PROMPT, view="map")
    tab.page.wait_for_selector("[data-map] [data-norm]")
    tab.settle()
    last = tab.page.locator("#pointed span").bounding_box()
    assert last is not None and last["y"] + last["height"] <= 900


def test_a_row_of_several_tokens_says_so(tab: Tab) -> None:
    for count, grouped in ((40, "2"), (20, None)):
        tab.go(prompt="#" + " ".join(str(300 + i) for i in range(count)), view="map")
        tab.page.wait_for_selector("[data-map] [data-norm]")
        sentence = tab.page.locator("[data-grouped]")
        assert (sentence.get_attribute("data-grouped") if sentence.count() else None) == grouped
        assert tab.page.locator("[data-start]").count() == (20 if grouped else count)


@pytest.mark.parametrize(("prompt", "taken"), [("The capital of France is [MASK].", False), (PROMPT, True)])
def test_a_candidate_is_offered_where_there_is_one(tab: Tab, prompt: str, taken: bool) -> None:
    """An encoder fills its blanks and writes nothing on."""
    tab.go(prompt=prompt, view="map", model="pellucid/capitals" if taken else "pellucid/capitals-bert")
    tab.page.wait_for_selector("[data-map] [data-norm]")
    assert ("Click a candidate" in tab.page.inner_text("#pointed")) is taken
    assert (tab.page.locator("[data-candidate]:enabled").count() > 0) is taken


def test_a_decoders_word_is_read_on_ribbons(tab: Tab) -> None:
    """Its first word stands where the encoder's ribbons pass: a rim in the page's own colour keeps it legible."""
    tab.go(prompt="The capital of France is Paris.", view="map", model="pellucid/capitals-t5")
    tab.page.wait_for_selector("[data-map] [data-norm]")
    rim = """e => {
      const own = getComputedStyle(e), page = getComputedStyle(document.querySelector("header"));
      return [own.paintOrder.split(" ")[0], own.stroke === page.backgroundColor];
    }"""
    assert tab.page.locator("text.piece").last.evaluate(rim) == ["stroke", True]


@pytest.mark.parametrize(("name", "parts"), [("capitals", {"attention", "feed"}), ("capitals-deepseek", {"attention", "feed", "experts"})])
@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.quick(4)
def test_the_parts_are_named_above_the_picture(still: Tab, lang: str, name: str, parts: set[str]) -> None:
    still.go(view="map", model=f"pellucid/{name}", lang=lang)
    still.page.wait_for_selector("[data-map] [data-headings=embedding]")
    still.settle()
    named = {one.get_attribute("data-heading") for one in still.page.query_selector_all("[data-map] [data-heading]")}
    assert named - {""} == parts | {"embedding"} and still.page.locator(".whole h2").count() == 1
    boxes = [one.bounding_box() for one in still.page.query_selector_all("[data-map] [data-headings]")]
    edges = [(box["x"], box["x"] + box["width"]) for box in boxes if box]
    assert all(end < start for (_, end), (start, _) in pairwise(edges))  # none stands on another


def test_several_examples_run_as_one_batch(still: Tab) -> None:
    """The prompts of the model, in one run of an exhibit whose padded table has a line for each. An encoder does not offer it."""
    still.go(view="map")
    examples = still.page.locator("[data-examples] button").all_inner_texts()[:3]
    still.page.click("[data-examples] a")
    still.page.wait_for_selector('article[aria-busy="false"][data-shown="en ragged"]')
    assert still.page.input_value("[data-control=prompts]") == " / ".join(examples)
    title = re.compile(phrases("en")["exhibit.ragged.grid"].partition("{")[0])
    grid = still.page.locator("[data-panel=table]").filter(has_text=title)
    expect(grid.locator("tbody tr")).to_have_count(3)
    expect(still.page.locator("[data-claim=same] .mark")).to_have_text("✓")
    still.go(view="map", model="pellucid/capitals-bert")
    expect(still.page.locator("[data-examples] a")).to_have_count(0)


def test_an_example_is_run(still: Tab) -> None:
    page = still.page
    still.go(view="map")
    assert page.locator("[data-examples] button").all_inner_texts()[0] == PROMPT
    page.click("[data-examples] button:has-text('日本的货币是')")
    expect(page.locator("[data-examples] [aria-pressed=true]")).to_have_text("日本的货币是")
    expect(page.locator("[data-answer]")).to_contain_text("日元")
    still.go(view="map", lang="zh")
    assert page.locator("[data-examples] button").all_inner_texts()[0] == "法国的首都是"  # those of the page's language first
