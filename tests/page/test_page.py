"""The page's Life and its tiles in a real Chromium, beside the Python API: the same ids, tensors, numbers, sums and bytes."""

import base64
import hashlib

import pytest
import torch
from playwright.sync_api import Browser

import pellucid
from browser import Tab, address_of, open_tab
from pellucid.api.model import Model, specimens
from pellucid.messages import phrases
from pellucid.tracing import Trace

PROMPT = "The capital of France is"
KINDS = ["embed", "layers.0.attn_norm", "layers.0.attn.q", "layers.1.attn.scores", "layers.1.attn.pattern", "layers.0.attn.z"]
KINDS += ["layers.0.mid", "layers.1.ffn.neurons", "layers.1.ffn", "logits"]
ROUTED = [
    "layers.0.attn.latent",
    "layers.0.attn.q_rot",
    "layers.1.ffn.affinity",
    "layers.1.ffn.share",
    "layers.1.ffn.gate",
    "layers.1.ffn.routed_out",
]


def same(name: str) -> tuple[Model, Trace]:
    """Return the specimen as the server opens it, and the trace of its own example."""
    model = pellucid.load(name, dtype="float32")
    prompt = PROMPT if name != "pellucid/capitals-bert" else f"{PROMPT} ___."
    return model, pellucid.trace(model, prompt, terms=True)


@pytest.mark.parametrize("name", specimens())
@pytest.mark.quick(8)
def test_life_shows_every_tensor_of_the_run(tab: Tab, name: str) -> None:
    model, run = same(name)
    tab.go(model=name, prompt=run.prompt)
    page = tab.page
    ids = [int(x) for x in page.locator(".token .id").all_inner_texts()]
    blanks = dict(zip(run.blanks, run.new, strict=False))
    filled = [i for at, id in enumerate(run.ids) for i in (id, *([blanks[at]] if at in blanks else []))]
    assert ids == (filled if blanks else run.ids + run.new)
    assert page.locator("[data-picked]").get_attribute("data-picked") == str(run.new[0])
    for closed in iter(lambda: page.locator('[data-block][aria-expanded="false"]'), None):
        if closed.count() == 0:
            break
        closed.first.click()
    shown = page.locator(".river [data-path]").evaluate_all("cards => cards.map(c => c.dataset.path)")
    assert sorted(shown) == sorted(s.path for s in run if s.step == 0)
    for s in (run[p] for p in ("logits", next(s.path for s in run if "pattern" in s.path))):
        sizes = page.locator(f'[data-path="{s.path}"] .axes span').all_inner_texts()
        assert sizes == [f"{a}{n}" for a, n in zip(s.dims.split(), s.shape, strict=True) if (a, n) != ("B", 1)]
    assert page.evaluate("document.querySelectorAll('*').length") < 5000
    assert model.num_parameters() > 0


def cells(run: Trace, path: str) -> tuple[tuple[int, ...], float]:
    """Return a cell away from the edges, of the last token if the tensor has tokens, and its value."""
    s = run[path]
    at = tuple(n - 1 if a == "T" else min(1, n - 1) if a in "BHGS" else n // 3 for a, n in zip(s.dims.split(), s.shape, strict=True))
    return at, float(s.value[at])


@pytest.mark.parametrize(
    ("name", "path"), [*(("pellucid/capitals", p) for p in KINDS), *(("pellucid/capitals-deepseek", p) for p in ROUTED)]
)
@pytest.mark.quick(7)
def test_a_cell_its_sum_and_its_bytes_are_the_runs(tab: Tab, name: str, path: str, runs: dict[str, Trace]) -> None:
    run = runs[name]
    at, value = cells(run, path)
    reading = tab.open_cell(path, at, model=name, prompt=PROMPT)
    assert float(torch.tensor(float(reading.value), dtype=run[path].dtype)) == value
    terms = run[path].terms
    assert terms is not None
    assert tab.formula_sum() == terms(at).total()
    assert tab.formula_sum() == pytest.approx(value, rel=1e-4, abs=1e-5)
    part = run[path].value[tuple(slice(*map(int, w.split(":"))) if ":" in w else int(w) for w in reading.bytes["at"].split(","))]
    assert reading.bytes["level"] == "0"
    assert reading.bytes["received"] == reading.bytes["source"] == hashlib.sha256(part.contiguous().numpy().tobytes()).hexdigest()


@pytest.fixture(scope="module")
def runs() -> dict[str, Trace]:
    return {name: same(name)[1] for name in ("pellucid/capitals", "pellucid/capitals-deepseek")}


def test_a_weight_opens_as_a_tile(tab: Tab) -> None:
    weight = pellucid.load("pellucid/capitals", dtype="float32").module.get_parameter("layers.0.ffn.up.weight").detach()
    reading = tab.open_cell("layers.0.ffn.up.weight", (300, 77), prompt=PROMPT)
    assert float(torch.tensor(float(reading.value), dtype=torch.float32)) == float(weight[300, 77])
    assert reading.bytes["received"] == hashlib.sha256(weight.contiguous().numpy().tobytes()).hexdigest()
    tab.settle()
    assert sum("stats" in request for request in tab.requests) == 1  # its range is asked for once


def test_a_recomputed_tile_has_its_largest_difference(tab: Tab, runs: dict[str, Trace]) -> None:
    seen = runs["pellucid/capitals-deepseek"]["layers.0.attn.pattern"]  # MLA's kernel makes no keys
    assert seen.source == "recomputed" and seen.error is not None
    tab.go(model="pellucid/capitals-deepseek", prompt=PROMPT, tensor="layers.0.attn.pattern")
    from pellucid.documents.number import number

    sentence = phrases("en")["page.recomputed"].format(error=number(seen.error))
    assert sentence in tab.page.inner_text("aside dl")


def test_another_prompt_and_enter_updates_everything(tab: Tab, runs: dict[str, Trace]) -> None:
    tab.go(prompt=PROMPT)
    tab.enter_prompt("The capital of Japan is")
    model = pellucid.load("pellucid/capitals", dtype="float32")
    run = pellucid.trace(model, "The capital of Japan is")
    assert [int(x) for x in tab.page.locator(".token .id").all_inner_texts()] == run.ids + run.new
    assert tab.page.locator("[data-picked]").get_attribute("data-picked") == str(run.new[0])


def test_a_tile_by_keyboard_alone(tab: Tab, runs: dict[str, Trace]) -> None:
    seen = runs["pellucid/capitals"]["layers.0.attn.scores"]
    tab.go(prompt=PROMPT)
    page = tab.page
    page.focus('[data-path="layers.0.attn.scores"]')
    page.keyboard.press("Enter")
    page.wait_for_selector("aside .frame")
    page.focus("aside .frame")
    for key, cell in [("ArrowDown", (0, 0, 1, 0)), ("ArrowRight", (0, 0, 1, 1)), ("ArrowDown", (0, 0, 2, 1)), ("End", (0, 0, 2, 4))]:
        page.keyboard.press(key)
        page.wait_for_selector(f'#reading[data-cell="{",".join(map(str, cell))}"]:not([data-value=""])')
        assert float(page.get_attribute("#reading", "data-value") or "nan") == pytest.approx(float(seen.value[cell]), rel=1e-6)
    assert page.get_attribute("#reading", "aria-live") == "polite"
    assert "cell=0%2C0%2C2%2C4" in address_of(page)
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.wait_for_selector("aside", state="detached")


def test_the_table_reads_what_the_picture_shows(tab: Tab, runs: dict[str, Trace]) -> None:
    seen = runs["pellucid/capitals"]["layers.0.attn.scores"]
    tab.open_cell("layers.0.attn.scores", (0, 2, 0, 0), prompt=PROMPT)
    tab.page.click(f"text={phrases('en')['page.table']}")
    tab.page.wait_for_selector("aside .slice")
    rows = tab.page.eval_on_selector_all(
        "aside .slice tbody tr", "rows => rows.map(r => [...r.querySelectorAll('td')].map(c => Number(c.textContent)))"
    )
    assert torch.equal(torch.tensor(rows, dtype=torch.float32), seen.value[0, 2])


def test_any_two_axes_may_be_rows_and_columns(tab: Tab, runs: dict[str, Trace]) -> None:
    seen = runs["pellucid/capitals"]["layers.0.attn.q"]
    tab.open_cell("layers.0.attn.q", (0, 1, 2, 3), prompt=PROMPT)
    tab.page.locator(".axis").nth(1).locator("button").first.click()  # heads as rows; tokens become the slider
    tab.page.click(f"text={phrases('en')['page.table']}")
    tab.page.wait_for_selector("aside .slice")
    rows = tab.page.eval_on_selector_all(
        "aside .slice tbody tr", "rows => rows.map(r => [...r.querySelectorAll('td')].map(c => Number(c.textContent)))"
    )
    assert torch.equal(torch.tensor(rows, dtype=torch.float32), seen.value[0, 1][:, : len(rows[0])])


@pytest.mark.parametrize("language", ["en", "zh"])
def test_both_languages_say_all_of_it(tab: Tab, language: str) -> None:
    tab.go(lang=language, prompt=PROMPT)
    messages = phrases(language)
    assert tab.page.evaluate("document.documentElement.lang") == {"en": "en", "zh": "zh-Hans"}[language]
    assert tab.page.locator("nav a").first.inner_text() == messages["page.view.map"]
    assert messages["axis.D"] in tab.page.inner_text(".legend")
    tab.page.click(f"[title='{messages['page.language']}']")
    other = phrases("zh" if language == "en" else "en")
    assert tab.page.locator("nav a").first.inner_text() == other["page.view.map"]


# As one text: a list of a million numbers takes ten seconds on its way.
PIXELS = """() => {
  const c = document.querySelector("aside canvas"), { data } = c.getContext("2d").getImageData(0, 0, c.width, c.height);
  let text = "";
  for (let i = 0; i < data.length; i += 8192) text += String.fromCharCode(...data.subarray(i, i + 8192));
  return btoa(text);
}"""


def test_without_webgl_the_pictures_are_the_same(browser: Browser, address: str) -> None:
    """Pictures drawn with WebGL and without it are equal. The processor plays the GPU here."""
    own = "HTMLCanvasElement.prototype.getContext"
    off = f"{own} = (get => function (kind, ...how) {{ return kind === 'webgl2' ? null : get.call(this, kind, ...how); }})({own})"
    ask = "WebGL2RenderingContext.prototype.getParameter"
    on = f"{ask} = (get => function (n) {{ const value = get.call(this, n); return typeof value === 'string' ? 'a GPU' : value; }})({ask})"
    count = "WebGL2RenderingContext.prototype.drawArrays"
    on += f"; {count} = (draw => function (...how) {{ window.__drawn = true; draw.apply(this, how); }})({count})"
    drawn = []
    for script in (on, off):
        with open_tab(browser, address) as tab:
            tab.page.add_init_script(script)
            tab.open_cell("layers.1.attn.scores", (0, 1, 2, 3), prompt=PROMPT)
            tab.settle()
            assert tab.page.evaluate("Boolean(window.__drawn)") == (script is on)
            drawn.append(torch.frombuffer(bytearray(base64.b64decode(tab.page.evaluate(PIXELS))), dtype=torch.uint8).int())
    assert len(drawn[0]) == len(drawn[1]) > 10_000
    assert int((drawn[0] - drawn[1]).abs().max()) <= 2


def test_a_wrong_prompt_is_refused_and_the_page_goes_on(tab: Tab) -> None:
    tab.refusals = {400}
    tab.go(prompt=PROMPT)
    tab.enter_prompt("x " * 200)
    assert tab.page.locator("[role=alert]").inner_text().strip()
    tab.enter_prompt(PROMPT)
    assert tab.page.locator("[role=alert]").count() == 0


@pytest.mark.parametrize("switches", ["", "layers.1.attn.scale=1", "nonsense"])
@pytest.mark.quick(4)
def test_a_first_prompt_that_is_refused_leaves_a_page_to_use(tab: Tab, switches: str) -> None:
    """A link may name what the model cannot run. Then its own first prompt runs below the line, and the address stays."""
    tab.refusals, page = {400}, tab.page
    tab.go(prompt="x " * 200, model="pellucid/capitals", **({"with": switches} if switches else {}))
    assert "64" in page.inner_text("[role=alert]") or switches == "nonsense"
    assert page.input_value("#prompt") == "x " * 200
    line = page.inner_text(".fault .still")
    assert line.startswith(phrases("en")["page.still.first"].split("{")[0]) and PROMPT in line
    assert ("scale=1" in line) == ("scale=1" in switches)  # it runs with the switches that can be
    page.click("nav a[href*='view=attention']")
    page.wait_for_selector("[data-stage=shares]")
    assert "x+x" in address_of(page)
    page.click(".fault button")
    assert page.locator("[role=alert]").count() == 0 and page.input_value("#prompt") == PROMPT
    tab.enter_prompt("The capital of Italy is")
    assert page.locator("[role=alert]").count() == 0


def test_a_link_gives_back_what_was_selected(tab: Tab) -> None:
    tab.go(prompt="The capital of Japan is", view="attention", block="layers.3", head=2, position=1)
    page = tab.page
    page.wait_for_selector(".heads .chosen")
    assert page.input_value("#prompt") == "The capital of Japan is"
    assert page.locator(".block.chosen .path").inner_text() == "layers.3.attn"
    assert page.locator(".heads .chosen").get_attribute("aria-label") == phrases("en")["page.head"].format(head=2)
    assert page.locator(".token.chosen .at").inner_text() == "1"
    page.click("nav a >> nth=1")
    page.click('[data-path="layers.0.attn_norm"]')
    page.go_back()
    page.wait_for_selector("aside", state="detached")
    page.go_back()
    page.wait_for_selector(".heads .chosen")


def test_the_token_leaves_the_address(tab: Tab) -> None:
    tab.go(prompt=PROMPT)
    assert "token=" not in tab.page.evaluate("location.href")
    tab.page.reload()
    tab.page.wait_for_selector("main nav")
