"""The page's pictures are of the run that it names: nothing of another stays, cached rows stand in their place, the mask is seen."""

from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, expect

import pellucid
from browser import READY, Tab, open_tab
from pellucid.api.model import Model
from pellucid.messages import phrases
from pellucid.ops.sampling.settings import Sampling
from pellucid.runs.answers import visible

PROMPT, OTHER = "The capital of France is", "Paris is the capital of"
PIXELS = """((c, x = 0, y = 0, w = c.width, h = c.height) => {
  const own = Object.assign(document.createElement("canvas"), { width: w, height: h }).getContext("2d", { willReadFrequently: true });
  own.drawImage(c, -x, -y);
  return own.getImageData(0, 0, w, h).data;
})"""
DRAWN = f"cs => cs.filter(c => c.width && {PIXELS}(c).some(Boolean)).length"
CLEAR = f"c => {PIXELS}(c).filter((a, i) => i % 4 === 3 && a < 255).length"  # pixels that are not wholly painted
# The frame around what a cell was made from: the box of its opaque pixels, in pixels of the picture.
FRAME = f"""c => {{
  const data = {PIXELS}(c), at = [];
  for (let i = 0; i < c.width * c.height; i++) if (data[4 * i + 3] > 200) at.push([i % c.width, Math.floor(i / c.width)]);
  const xs = at.map((p) => p[0]), ys = at.map((p) => p[1]);
  return at.length ? [Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys)] : null;
}}"""


@pytest.fixture(scope="module")
def model() -> Model:
    return pellucid.load("pellucid/capitals", dtype="float32")


@pytest.mark.parametrize(
    ("view", "canvases"), [("life", ".card canvas:not(.over)"), ("attention", ".heads canvas"), ("attention", ".frame canvas:not(.over)")]
)
@pytest.mark.quick(4)
def test_while_a_run_is_awaited_no_picture_of_the_last_one_stays(browser: Browser, address: str, view: str, canvases: str) -> None:
    with open_tab(browser, address) as tab:
        tab.go(view=view, prompt=PROMPT)
        tab.settle()
        page = tab.page
        assert page.eval_on_selector_all(canvases, DRAWN) > 0
        routes: list[Any] = []
        page.route("**/api/runs/*/tensors/*", lambda route: routes.append(route))
        tab.enter_prompt(OTHER)
        page.wait_for_function("n => document.querySelectorAll('.token .piece').length > 0 && document.title.startsWith(n)", arg=OTHER)
        assert page.eval_on_selector_all(canvases, DRAWN) == 0
        assert routes
        page.unroute("**/api/runs/*/tensors/*")  # the routes that wait go on
        page.wait_for_function(f"cs => ({DRAWN})([...document.querySelectorAll(cs)]) > 0", arg=canvases)


def test_a_key_of_an_earlier_step_is_framed_in_the_cache(tab: Tab) -> None:
    """In step 1 of five tokens key 2, computed in step 0, is framed as the third of six rows of its head."""
    tab.go(prompt=PROMPT, steps=3, step=1, tensor="layers.0.attn.scores", cell="0,0,0,2")
    page = tab.page
    card = page.locator('[data-path="layers.0.attn.k"]')
    expect(card.locator("[data-cached]")).to_have_attribute("data-cached", "5")
    page.wait_for_selector('[data-path="layers.0.attn.k"] canvas.over')
    tab.settle()
    over = card.locator("canvas.over")
    wide, high = over.evaluate("c => [c.width, c.height]")
    _, top, right, bottom = over.evaluate(FRAME)
    head = high // 2 if wide < 2 * high else high  # how the four heads stand is the picture's affair; the first is at the top left
    assert right < wide / 2 and bottom <= head
    assert top >= 2 * head / 6 / 2 - 2 and bottom - top <= head / 2
    tab.go(prompt=PROMPT, steps=3, step=1, tensor="layers.0.attn.scores", cell="0,0,0,5")
    page.wait_for_selector('[data-path="layers.0.attn.k"] canvas.over')
    tab.settle()
    assert over.evaluate(FRAME)[1] > top  # the new row stands below


@pytest.mark.parametrize("sampling", ["", "temperature:2 seed:3", "temperature:1", "temperature:3 top_k:5 seed:9"])
@pytest.mark.quick(4)
def test_chip_life_and_next_token_agree(tab: Tab, model: Model, sampling: str) -> None:
    """The settings in the address are the run's: every view shows the tokens that Python draws."""
    settings = {k: float(v) if k == "temperature" else int(v) for k, v in (word.split(":") for word in sampling.split())}
    expected = model.generate([model.ids(PROMPT)], max_new_tokens=3, eos=None, **{"seed": 0, **settings})
    ids = expected[0]
    page = tab.page
    for step, id in enumerate(ids):
        tab.go(prompt=PROMPT, steps=3, step=step, sampling=sampling)
        page.wait_for_selector("[data-picked]")
        assert [int(x) for x in page.locator(".token.new .id").all_inner_texts()] == ids
        assert page.get_attribute("[data-picked]", "data-picked") == str(id)
        page.click("nav a[href$='view=next']")
        expect(page.locator("[data-pick]")).to_have_attribute("data-pick", str(id))
        expect(page.locator("[data-pick]")).to_have_attribute("data-happened", "true")


def test_settings_that_are_tried_say_that_they_did_not_happen(tab: Tab) -> None:
    tab.go(view="next", prompt=PROMPT)
    page = tab.page
    page.wait_for_selector("[data-pick][data-happened=true]")
    took = page.get_attribute("[data-pick]", "data-pick")
    page.locator("#set-temperature").fill("2")
    page.locator("#set-temperature").press("Enter")
    page.locator("#set-seed").fill("3")
    page.locator("#set-seed").press("Enter")
    expect(page.locator("[data-pick]")).to_have_attribute("data-happened", "false")
    assert page.get_attribute("[data-took]", "data-took") == took
    would = page.get_attribute("[data-pick]", "data-pick")
    assert [page.locator(".token.new .id").inner_text()] == [took]
    page.click("[data-adopt]")
    expect(page.locator(".token.new .id")).to_have_text(would or "")
    expect(page.locator("[data-pick]")).to_have_attribute("data-pick", would or "")
    expect(page.locator("[data-pick]")).to_have_attribute("data-happened", "true")
    assert page.locator("[data-took]").count() == 0
    tab.go(view="next", prompt=PROMPT, trial="temperature:2 seed:3")
    page.fill("#prompt", OTHER)
    page.keyboard.press("Enter")  # another run takes what is tried
    page.wait_for_function("() => decodeURIComponent(location.hash).includes('sampling=temperature:2+seed:3')")
    expect(page.locator("[data-pick]")).to_have_attribute("data-happened", "true")


def test_the_runs_document_has_its_sampling_settings(browser: Browser, address: str, model: Model) -> None:
    with open_tab(browser, address) as tab:
        replies: list[Any] = []
        tab.page.on("response", lambda r: replies.append(r) if r.url.split("?")[0].endswith("/api/runs") else None)
        tab.go(prompt=PROMPT, sampling="temperature:2 seed:3 top_k:7")
        plain = {k: getattr(Sampling(), k) for k in Sampling.__dataclass_fields__}
        assert replies[-1].json()["sampling"] == {**plain, "temperature": 2, "seed": 3, "top_k": 7}
        tab.go(prompt=PROMPT)
        assert replies[-1].json()["sampling"]["temperature"] == 0


def test_a_logit_over_a_temperature_is_shown_as_that(tab: Tab, model: Model) -> None:
    logits = pellucid.trace(model, PROMPT).last_logits()
    tab.go(view="next", prompt=PROMPT, sampling="temperature:2 seed:3")
    tab.page.wait_for_selector("[data-pick]")
    rows = tab.page.locator("tr[data-id]").all()
    assert rows
    for row in rows:
        id = int(row.get_attribute("data-id") or -1)
        shown = row.locator("[data-stage=temperature]").get_attribute("data-plain") or "nan"
        assert float(shown) == pytest.approx(float(logits[id]) / 2, rel=1e-6)
    top = float(logits.max()) / 2
    assert f"− {top:.3f}" in tab.page.inner_text(".formula")


def test_a_hash_names_the_slice_that_it_is_of(tab: Tab) -> None:
    tab.open_cell("layers.0.attn.scores", (0, 2, 4, 3), prompt=PROMPT)
    text = tab.page.inner_text("aside .hash")
    assert "layers.0.attn.scores[0, 2, 0:5, 0:5]" in text
    assert phrases("en")["page.hash.equal"].format(part="layers.0.attn.scores[0, 2, 0:5, 0:5]") in text


def test_a_logit_says_which_token_it_is_of(tab: Tab, model: Model) -> None:
    """It holds for the likeliest token and for the least likely one."""
    logits = pellucid.trace(model, PROMPT).last_logits()
    assert model.tokenizer is not None
    for id in (int(logits.argmax()), int(logits.argmin())):
        tab.open_cell("logits", (0, 4, id), prompt=PROMPT)
        piece = model.tokenizer.pieces([id])[0]
        expect(tab.page.locator("#reading")).to_contain_text(f"V {id} “{visible(piece)}”")


def test_what_the_mask_hides_says_so(tab: Tab) -> None:
    messages = phrases("en")
    tab.open_cell("layers.0.attn.pattern", (0, 1, 1, 3), prompt=PROMPT)
    expect(tab.page.locator("[data-masked]")).to_have_text(messages["page.masked.share"].format(query=1, key=3))
    assert tab.page.locator("[data-sum]").count() == 0
    tab.open_cell("layers.0.attn.scores", (0, 1, 1, 3), prompt=PROMPT)
    expect(tab.page.locator("[data-masked]")).to_have_text(messages["page.masked.score"].format(query=1, key=3))
    tab.open_cell("layers.0.attn.pattern", (0, 1, 3, 1), prompt=PROMPT)
    assert tab.formula_sum() > 0 and tab.page.locator("[data-masked]").count() == 0
    # Its cells are hatched, in the tile and in Life: not one pixel of them has the colour of 0.
    solid = (
        f"c => {PIXELS}(c, Math.round(c.width * AT), Math.round(c.height * HIGH), 4, 4).filter((a, i) => i % 4 === 3 && a === 255).length"
    )
    tile = tab.page.locator("aside .frame canvas").first
    assert (
        tile.evaluate(solid.replace("AT", ".9").replace("HIGH", ".2")) == 0 < tile.evaluate(solid.replace("AT", ".2").replace("HIGH", ".9"))
    )
    tab.go(prompt=PROMPT)
    tab.page.wait_for_selector('[data-path="layers.0.attn.pattern"] [data-drawn]')
    tab.page.wait_for_function(READY)
    card = tab.page.locator('[data-path="layers.0.attn.pattern"] canvas').first
    assert card.evaluate(CLEAR) > 200


def test_a_river_is_as_high_as_its_drawing(tab: Tab) -> None:
    """After a long model a short one has the height of a fresh load."""
    tab.go(model="pellucid/capitals-deepseek", prompt=PROMPT)
    tab.settle()
    tab.page.select_option("#model", "pellucid/capitals-llama")
    tab.settle()
    changed = tab.page.evaluate("document.documentElement.scrollHeight")
    tab.page.reload()
    tab.page.wait_for_function(READY)
    tab.settle()
    assert changed == tab.page.evaluate("document.documentElement.scrollHeight")


def test_the_page_has_the_numbers_of_a_load_without_a_dtype(tab: Tab) -> None:
    """The README's first line and the page give one number; a load in the dtype on disk would be seen."""
    path, at = "layers.0.attn.scores", (0, 2, 3, 1)
    shown = float(tab.open_cell(path, at, prompt=PROMPT).value)
    own = pellucid.trace(pellucid.load("pellucid/capitals"), PROMPT)[path].value[at]
    stored = pellucid.trace(pellucid.load("pellucid/capitals", dtype="bfloat16"), PROMPT)[path].value[at]
    assert torch.tensor(shown, dtype=own.dtype) == own != stored.float()
