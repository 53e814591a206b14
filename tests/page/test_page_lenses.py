"""The inside of a run on the page is the Python API's: lens, attributions, rotary hands, expert groups, cache reuse, two runs."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, expect
from torch import Tensor

import pellucid
from browser import Tab, open_tab
from pellucid import ops
from pellucid.analysis.attribution import attribution
from pellucid.analysis.lens import lens
from pellucid.api.count import count
from pellucid.api.model import Model
from pellucid.documents.number import number
from pellucid.tracing import Trace

PROMPT, OTHER = "The capital of France is", "The capital of Japan is"
EACH = "els => els.map(e => ({...e.dataset, text: e.innerText}))"


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    names = ("capitals", "capitals-llama", "capitals-deepseek")
    return {name: pellucid.load(f"pellucid/{name}", dtype="float32") for name in names}


@pytest.fixture(scope="module")
def traces(models: dict[str, Model]) -> dict[str, Trace]:
    return {name: pellucid.trace(model, PROMPT, 2) for name, model in models.items()}


@pytest.fixture(scope="module")
def still(browser: Browser, address: str) -> Iterator[Tab]:
    """Open a tab that prefers reduced motion."""
    with open_tab(browser, address, reduced_motion="reduce") as tab:
        yield tab


def narrow(text: object) -> float:
    """Return the number that the shortest text of a float32 stands for."""
    return float(torch.tensor(float(str(text)), dtype=torch.float32))


def elements(tab: Tab, selector: str) -> list[dict[str, Any]]:
    """Return the data attributes and the text of all elements of a selector."""
    rows: list[dict[str, Any]] = tab.page.eval_on_selector_all(selector, EACH)
    return rows


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("name", ["capitals", "capitals-deepseek"])
@pytest.mark.quick(4)
def test_the_lens_says_what_the_api_says(tab: Tab, models: dict[str, Model], traces: dict[str, Trace], name: str, step: int) -> None:
    layers, id = lens(models[name], traces[name], step), traces[name].new[step]
    tab.go(view="next", model=f"pellucid/{name}", prompt=PROMPT, steps=2, step=step)
    tab.page.wait_for_selector("[data-layer]")
    for path, logits in layers:
        row = f'tr[data-layer="{path}"]'
        cells = elements(tab, f"{row} [data-id]")
        best = logits.argsort(descending=True, stable=True)[:5].tolist()
        assert [int(c["id"]) for c in cells] == best
        assert [float(c["logit"]) for c in cells] == [float(logits[i]) for i in best]
        (followed,) = elements(tab, f"{row} [data-followed]")
        assert (float(followed["followed"]), followed["text"]) == (float(logits[id]), number(float(logits[id])))
        assert tab.page.inner_text(f"{row} [data-rank]") == str(1 + int((logits > logits[id]).sum()))


@pytest.mark.parametrize("name", ["capitals", "capitals-llama", "capitals-deepseek"])
@pytest.mark.quick(4)
def test_attributions_sum_to_the_logit(tab: Tab, models: dict[str, Model], traces: dict[str, Trace], name: str) -> None:
    trace = traces[name]
    attributions = attribution(models[name], trace, trace.new[0])
    tab.go(view="next", model=f"pellucid/{name}", prompt=PROMPT, steps=2, block="layers.1")
    tab.page.wait_for_selector("[data-total]")
    by_part = {s.path: s.value for s in attributions.parts if s.head is None}
    shown = {c["path"]: c for c in elements(tab, "td [data-added]")}
    assert {path: float(c["added"]) for path, c in shown.items()} == by_part
    assert all(c["text"].lstrip("+") == number(by_part[path]) for path, c in shown.items())
    heads = {(c["path"], int(c["head"])): float(c["added"]) for c in elements(tab, "[data-head]")}
    assert heads == {(s.path, s.head): s.value for s in attributions.parts if s.path == "layers.1.attn"}
    sums = {c["path"]: float(c["sum"]) for c in elements(tab, "[data-sum]")}
    assert sums["layers.2.attn"] == pytest.approx(sum(s.value for s in attributions.parts if s.path == "layers.2.attn"), abs=1e-12)
    rest = {c["rest"]: float(c["added"]) for c in elements(tab, "[data-rest]")}
    assert rest == {s.path: s.value for s in attributions.rest}
    assert sum(by_part.values()) + sum(sums.values()) + sum(rest.values()) == pytest.approx(
        float(trace.last_logits(0)[trace.new[0]]), abs=2e-5
    )
    text = tab.page.inner_text("[data-total]")
    assert f"= {number(attributions.total)}," in text and text.rstrip().endswith(number(attributions.value))


def test_another_token_is_followed(tab: Tab, models: dict[str, Model], traces: dict[str, Trace]) -> None:
    tab.go(view="next", prompt=PROMPT)
    cell = tab.page.locator('tr[data-layer="layers.3.out"] [data-id]').nth(1)
    id = int(cell.get_attribute("data-id") or 0)
    cell.click()
    attributions = attribution(models["capitals"], traces["capitals"], id)
    expect(tab.page.locator("p[data-total]")).to_have_attribute("data-value", str(attributions.value))
    assert float(tab.page.get_attribute("p[data-total]", "data-total") or 0) == attributions.total


@pytest.mark.parametrize("name", ["capitals-llama", "capitals-deepseek"])
@pytest.mark.quick(2)
def test_hands_stand_at_the_angles_that_ran(tab: Tab, models: dict[str, Model], traces: dict[str, Trace], name: str) -> None:
    """Angles are those of the op that the model calls, hands lie at them on the screen, and their sum is the record's q·k."""
    part: Any = models[name].module.layers[1].attn
    rope = getattr(part, "rope", None) or part.spec.rope
    cos, sin = (t[0, :, 0] for t in ops.angles(torch.arange(6)[None], rope, torch.float32))
    tab.go(view="attention", model=f"pellucid/{name}", prompt=PROMPT, block="layers.1", head=1, cell="4,2")
    tab.page.wait_for_selector("[data-pair]")
    dials = elements(tab, "[data-pair]")
    assert len(dials) == rope.width // 2
    for i, dial in enumerate(dials):
        for side, at in (("query", 4), ("key", 2)):
            angle = float(dial[side])
            assert angle == pytest.approx(at * rope.theta ** (-2 * i / rope.width), rel=1e-12)
            assert (math.cos(angle), math.sin(angle)) == pytest.approx((float(cos[at, i]), float(sin[at, i])), abs=1e-6)
    tab.page.wait_for_timeout(800)  # the hands come to rest
    rotation = "e => { const m = getComputedStyle(e).transform.match(/[-\\d.e]+/g).map(Number); return [m[0], m[1]]; }"
    x, y = tab.page.eval_on_selector("[data-pair='0'] .hand.query", rotation)
    assert (x, -y) == pytest.approx((float(cos[4, 0]), float(sin[4, 0])), abs=1e-4)
    q = traces[name].all("layers.1.attn.q_rot")[0].value[0, 4, 1].double()
    keys = "layers.1.attn.k_rot" if "layers.1.attn.k_rot" in traces[name] else "layers.1.attn.k_shared"
    k = traces[name].all(keys)[0].value[0, 2].double()
    total = float(q @ (k[0] if k.ndim == 2 else k))
    score = float(traces[name].all("layers.1.attn.scores")[0].value[0, 1, 4, 2])
    (line,) = elements(tab, "section.q [data-total]")
    assert float(line["total"]) == pytest.approx(total, abs=1e-12) and narrow(line["score"]) == score
    assert f"add {number(total)} to" in line["text"] and f"is {number(score)}." in line["text"]


def test_hands_move_when_a_token_changes_unless_motion_is_reduced(tab: Tab, still: Tab) -> None:
    for window, moves in ((tab, "0.25s"), (still, "0s")):
        window.go(view="attention", model="pellucid/capitals-llama", prompt=PROMPT, cell="4,2")
        window.page.wait_for_selector("[data-pair]")
        assert window.page.eval_on_selector(".hand.query", "e => getComputedStyle(e).transitionDuration") == moves
        window.page.locator("section.q input").first.focus()
        window.page.keyboard.press("ArrowLeft")
        window.page.wait_for_function("() => document.querySelector('[data-pair]').dataset.query === '3'")
        assert "cell=3%2C2" in window.page.url


MASKS = [
    ("capitals", 0, "causal"),
    ("capitals-prefix", 0, "prefix of 5"),
    ("capitals-bert", 0, "both ways"),
    ("capitals-t5", 0, "both ways"),
]


@pytest.mark.parametrize(("name", "block", "words"), MASKS)
@pytest.mark.quick(4)
def test_masked_cells_are_left_out_of_the_picture(tab: Tab, name: str, block: int, words: str) -> None:
    """The middle of a cell is coloured if the query sees the key, and clear or hatched if it does not."""
    tab.go(view="attention", model=f"pellucid/{name}", prompt=PROMPT)
    tab.page.wait_for_selector(".heads canvas")
    assert tab.page.locator(".mask").nth(block).inner_text() == words
    tab.settle()
    alphas = tab.page.locator(".heads canvas").first.evaluate(
        "c => { const n = 5, w = c.width, all = c.getContext('2d').getImageData(0, 0, w, w).data;"
        " return [...Array(n * n).keys()].map(i => { const left = (i % n) * w / n, top = Math.floor(i / n) * w / n;"
        " for (let y = Math.ceil(top) + 2; y < top + w / n - 2; y++) for (let x = Math.ceil(left) + 2; x < left + w / n - 2; x++)"
        " if (all[4 * (y * w + x) + 3] !== 255) return false; return true; }); }"
    )
    seen = [[k <= q or words != "causal" for k in range(5)] for q in range(5)]
    assert alphas == [x for row in seen for x in row]


def test_cross_attention_says_so(tab: Tab) -> None:
    tab.go(view="attention", model="pellucid/capitals-t5", prompt=PROMPT)
    tab.page.wait_for_selector(".mask")
    masks = {c["mask"]: c["text"] for c in elements(tab, "[data-mask]")}
    assert masks["decoder.layers.0.attn"] == "causal" and masks["decoder.layers.0.cross"] == "reads the source"
    assert masks["encoder.layers.1.attn"] == "both ways"


def test_the_latent_is_counted(tab: Tab, models: dict[str, Model], traces: dict[str, Trace]) -> None:
    spec: Any = models["capitals-deepseek"].config.layers[0].attn
    tab.go(view="attention", model="pellucid/capitals-deepseek", prompt=PROMPT)
    tab.page.wait_for_selector("[data-stored]")
    (line,) = elements(tab, "[data-stored]")
    stored, grown = spec.kv_rank + spec.rope.width, spec.heads * (spec.key + spec.value)
    assert (int(line["stored"]), int(line["grown"])) == (stored, grown)
    assert stored * 4 * len(models["capitals-deepseek"].config.layers) == int(
        count("pellucid/capitals-deepseek", dtype="float32", cache="float32")["cache.bytes_per_token"]
    )
    tab.page.wait_for_selector('[data-drawn="layers.0.attn.kv_b.weight"]')  # the list of weights arrives after the run
    paths = [c["path"].removeprefix("layers.0.attn.") for c in elements(tab, ".flow [data-path]")]
    assert paths == ["latent", "k_shared", "kv_b.weight", "k", "v", "q_a", "q_norm", "q", "q_rot"]


def test_groups_and_corrections_are_the_routers(tab: Tab, models: dict[str, Model], traces: dict[str, Trace]) -> None:
    model, trace, token = models["capitals-deepseek"], traces["capitals-deepseek"], 3
    spec: Any = model.config.layers[2].ffn
    ffn: Any = model.module.layers[2].ffn

    def row(name: str) -> Tensor:
        return trace.all(f"layers.2.ffn.{name}")[0].value[0, token]  # type: ignore[no-any-return]

    ranked = row("corrected")
    groups = ranked.unflatten(0, (spec.groups, -1)).topk(spec.group_best, -1)[0].sum(-1)
    kept = set(groups.topk(spec.groups_chosen)[1].tolist())
    tab.go(view="experts", model="pellucid/capitals-deepseek", prompt=PROMPT, block="layers.2", position=token)
    tab.page.wait_for_selector("[data-group]")
    shown = elements(tab, "[data-group]")
    assert [narrow(g["score"]) for g in shown] == [float(x) for x in groups]
    assert {int(g["group"]) for g in shown if g["stays"] == "true"} == kept
    assert all(f": {number(float(x))}" in g["text"] for g, x in zip(shown, groups, strict=True))
    size = spec.experts // spec.groups
    assert {int(e) // size for e in row("chosen")} <= kept  # the chosen are of groups that stay
    tab.page.get_by_text("All experts as a table").click()
    for name, values in (("score", row("affinity")), ("correction", ffn.correction), ("ranked", ranked)):
        cells = elements(tab, f"tr[data-row] [data-{name}]")
        assert [narrow(c[name]) for c in cells] == [float(x) for x in values]
        assert [c["text"] for c in cells] == [number(float(x)) for x in values]
    (line,) = elements(tab, "[data-shared]")
    lengths = [float(row(name).double().norm()) for name in ("routed_out", "shared")]
    assert [float(line["routed"]), float(line["shared"])] == pytest.approx(lengths, rel=1e-12)
    assert all(number(x) in line["text"] for x in lengths)


def test_layer_by_layer_and_kind_by_kind_the_cache_is_the_bills(tab: Tab, models: dict[str, Model]) -> None:
    tab.go(view="cache", prompt=PROMPT, steps=3, step=2)
    tab.page.wait_for_selector("tr[data-part]")
    each = int(count("pellucid/capitals", dtype="float32", cache="float32")["cache.bytes_per_token"])
    layers = elements(tab, "tr[data-part] [data-bytes]")
    assert [float(c["bytes"]) for c in layers] == [7 * each / 4] * 4
    bill = count("pellucid/capitals", context=7, dtype="float32", cache="float32")
    tab.page.wait_for_selector("li[data-kind]")
    kinds = {c["kind"]: int(c["bytes"]) for c in elements(tab, "li[data-kind]")}
    assert kinds["MHA"] == int(bill["cache.bytes"]) and {"MQA"} < set(kinds) and any(k.startswith("MLA") for k in kinds)
    heads = models["capitals"].config.layers[0].attn.heads
    assert kinds["MQA"] * heads == kinds["MHA"]


def test_an_edited_prompt_leaves_of_the_cache_what_the_engine_reads(tab: Tab, models: dict[str, Model], traces: dict[str, Trace]) -> None:
    other = pellucid.trace(models["capitals"], OTHER)
    tab.go(view="cache", prompt=PROMPT)
    tab.page.fill("#edited", OTHER)
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector("[data-reused]")
    (line,) = elements(tab, "[data-reused]")
    assert (line["same"], line["reused"], line["paged"]) == ("3", "3", "0")
    assert tab.page.locator(".positions .stale").count() == 2
    assert "reads 3 of 5 rows and computes 2" in line["text"]
    for row in elements(tab, "tr[data-part]:has([data-first])"):
        first, largest = (tab.page.get_attribute(f"tr[data-part='{row['part']}'] [data-{n}]", f"data-{n}") for n in ("first", "largest"))
        apart = torch.stack(
            [
                (other[f"{row['part']}.{n}"].value - traces["capitals"].all(f"{row['part']}.{n}")[0].value)[0].abs().amax((1, 2))
                for n in "kv"
            ]
        ).amax(0)
        assert int(first or -1) == 3 == int((apart > 0).nonzero()[0])
        assert narrow(largest) == float(apart.max())
    assert len(elements(tab, "tr[data-part]:has([data-first])")) == 4


def test_two_prompts_tile_by_tile(tab: Tab, models: dict[str, Model], traces: dict[str, Trace]) -> None:
    other = pellucid.trace(models["capitals"], OTHER)
    tab.go(view="change", prompt=PROMPT, against=OTHER)
    tab.page.wait_for_selector(".against [data-path]")
    tab.settle()
    mine = [s for s in traces["capitals"] if s.step == 0]
    expected = {s.path: float((s.value.double() - other[s.path].value.double()).abs().max()) for s in mine}
    shown = {c["path"]: float(c["largest"]) for c in elements(tab, ".against [data-path]")}
    assert shown == {path: gap for path, gap in expected.items() if gap > 0}
    (head,) = elements(tab, ".against [data-differ]")
    assert (int(head["differ"]), int(head["all"])) == (len(shown), len(mine))
    rows = tab.page.locator(".against tr[data-id]").all()
    assert len(rows) >= 12
    for row in rows:
        id = int(row.get_attribute("data-id") or -1)
        assert float(row.locator("[data-first]").get_attribute("data-first") or "nan") == float(traces["capitals"].last_logits(0)[id])
        assert float(row.locator("[data-logit]").get_attribute("data-logit") or "nan") == float(other.last_logits(0)[id])
    tab.page.click('.against [data-path="layers.2.mid"]')
    tab.page.wait_for_function(
        "g => Number(document.querySelector('p[data-largest]')?.dataset.largest) === g", arg=expected["layers.2.mid"]
    )


def test_two_models_tile_by_tile(tab: Tab, traces: dict[str, Trace]) -> None:
    tab.go(view="change", prompt=PROMPT, against=PROMPT, other="pellucid/capitals-llama")
    tab.page.wait_for_selector(".against [data-path]")
    shown = {c["path"]: c["largest"] for c in elements(tab, ".against [data-path]")}
    a, b = (next(s.value for s in traces[n] if s.path == "layers.1.attn.pattern") for n in ("capitals", "capitals-llama"))
    assert float(shown["layers.1.attn.pattern"]) == float((a.double() - b.double()).abs().max())
    other = tab.page.locator(".against .picks")
    assert other.get_attribute("data-after") == str(traces["capitals-llama"].new[0])
    k = next(path for path, gap in shown.items() if gap == "")  # as many axes, other sizes
    tab.page.click(f'.against [data-path="{k}"]')
    expect(tab.page.locator(".against")).to_contain_text("no cell of one stands for a cell of the other")
