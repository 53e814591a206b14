"""A softmax, an activation, a norm and an embedding as the page draws them: each mark is a number of Python's record."""

import math
import re
from typing import Any

import pytest
import torch

import pellucid
from browser import Tab
from pellucid.ops.gate import ACTS
from pellucid.tracing import Trace
from pellucid.watching.records import Seen

PROMPT = "The capital of France is"
RECTS = """all => all.map(e => ({ ...e.dataset, x: +e.getAttribute("x"), y: +e.getAttribute("y"),
  width: +e.getAttribute("width"), height: +e.getAttribute("height") }))"""
SVG = "e => ({ ...e.dataset })"
CLOSE = 0.011  # px of a coordinate with two decimals


@pytest.fixture(scope="module")
def runs() -> dict[str, Trace]:
    names = ("pellucid/capitals", "pellucid/capitals-llama")
    return {name: pellucid.trace(pellucid.load(name, dtype="float32"), PROMPT, terms=True) for name in names}


def opened(tab: Tab, runs: dict[str, Trace], path: str, at: tuple[int, ...], name: str = "pellucid/capitals", **place: Any) -> Seen:
    """Open a cell and wait for its picture. Returns its record."""
    tab.open_cell(path, at, model=name, prompt=PROMPT, **place)
    tab.settle()
    return runs[name][path]


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.quick(2)
def test_a_softmax_is_its_row(tab: Tab, runs: dict[str, Trace], lang: str) -> None:
    at = (0, 0, 3, 1)
    seen, scores = opened(tab, runs, "layers.0.attn.pattern", at, lang=lang), runs["pellucid/capitals"]["layers.0.attn.scores"]
    row, shares = scores.value[0, 0, 3], seen.value[0, 0, 3]
    drawn = {kind: tab.page.eval_on_selector_all(f"[data-{kind}]", RECTS) for kind in ("score", "power", "share")}
    assert seen.terms is not None
    powers = (row.double() - seen.terms(at).about["top"]).exp()
    for kind, numbers, tall in (("score", row.double(), 0.0), ("power", powers, 46.0), ("share", shares.double(), 46.0)):
        assert [int(r[kind]) for r in drawn[kind]] == [0, 1, 2, 3]  # the fifth key is hidden from this query
        for r in drawn[kind]:
            x = float(numbers[int(r[kind])])
            assert float(r["number"]) == pytest.approx(x, rel=1e-14) and (tall == 0 or abs(r["height"] - tall * x) < CLOSE)
    assert tab.page.locator("[data-veiled='4']").count() == 1
    total = float(tab.page.get_attribute("[data-sum-of-powers]", "data-sum-of-powers") or "nan")
    assert total == seen.terms(at).about["sum"] == pytest.approx(float(powers[:4].sum()), rel=1e-6)
    other = runs["pellucid/capitals"]["layers.0.attn.pattern"].value[0, 1, 3]  # the mutant: another head's
    assert [float(r["number"]) for r in drawn["share"]] != [float(x) for x in other[:4]]


@pytest.mark.parametrize(("name", "act"), [("pellucid/capitals", "gelu_tanh"), ("pellucid/capitals-llama", "silu")])
@pytest.mark.quick(2)
def test_an_activation_is_a_point_on_its_curve(tab: Tab, runs: dict[str, Trace], name: str, act: str) -> None:
    path = "layers.0.ffn.neurons"
    seen = opened(tab, runs, path, (0, 4, 17), name)
    x = float(runs[name][seen.inputs[0]].value[0, 4, 17])
    svg = {k: float(v) for k, v in tab.page.eval_on_selector("[data-act]", SVG).items() if k != "act"}
    assert tab.page.get_attribute("[data-act]", "data-act") == act
    point = tab.page.eval_on_selector("[data-point]", "e => ({ ...e.dataset, cx: +e.getAttribute('cx'), cy: +e.getAttribute('cy') })")
    assert seen.terms is not None
    y = float(seen.terms((0, 4, 17)).factors["act"][0])
    assert (float(point["x"]), float(point["y"])) == (x, y)
    px = lambda x: svg["start"] + (x - svg["left"]) / (svg["right"] - svg["left"]) * svg["across"]  # noqa: E731
    py = lambda y: svg["edge"] + (svg["most"] - y) / (svg["most"] - svg["least"]) * (svg["height"] - 2 * svg["edge"])  # noqa: E731
    assert abs(point["cx"] - px(x)) < CLOSE and abs(point["cy"] - py(y)) < CLOSE
    curve = [tuple(map(float, p.split())) for p in (tab.page.get_attribute("path.curve", "d") or "")[1:].split("L")]
    at = torch.linspace(svg["left"], svg["right"], len(curve), dtype=torch.float64)
    for other, same in ((act, True), ("relu", False)):  # the mutant: another activation's
        made = [(px(float(a)), py(float(b))) for a, b in zip(at, ACTS[other](at), strict=True)]
        assert all(abs(p[0] - q[0]) < CLOSE and abs(p[1] - q[1]) < CLOSE for p, q in zip(curve, made, strict=True)) is same
    dots = re.findall(r"M([-\d.]+) ([-\d.]+)h0", tab.page.get_attribute("path.row", "d") or "") if len(seen.inputs) == 1 else []
    row = list(zip(runs[name][seen.inputs[0]].value[0, 4].tolist(), seen.value[0, 4].tolist(), strict=True)) if dots else []
    inside = [(a, b) for a, b in row if svg["left"] <= a <= svg["right"] and svg["least"] <= b <= svg["most"]]
    assert len(dots) == len(inside)
    assert all(abs(float(p[0]) - px(a)) < CLOSE and abs(float(p[1]) - py(b)) < CLOSE for p, (a, b) in zip(dots, inside, strict=True))


@pytest.mark.parametrize(("name", "path"), [("pellucid/capitals", "layers.1.ffn_norm"), ("pellucid/capitals-llama", "norm")])
@pytest.mark.quick(2)
def test_a_norm_is_its_row_before_and_after(tab: Tab, runs: dict[str, Trace], name: str, path: str) -> None:
    seen = opened(tab, runs, path, (0, 2, 31), name)
    before = runs[name][seen.inputs[0]].value[0, 2].double()
    assert seen.terms is not None
    about = seen.terms((0, 2, 31)).about
    middle, size = about.get("mean", 0.0), about.get("deviation", about.get("rms", math.nan))
    svg = tab.page.eval_on_selector("[data-size]", SVG)
    assert float(svg["size"]) == size and ("mean" not in svg if "rms" in about else float(svg["mean"]) == middle)
    start, across = float(svg["start"]), float(svg["across"])
    for n, row in enumerate((before, seen.value[0, 2].double())):
        line = tab.page.eval_on_selector(f"[data-line='{n}']", SVG)
        low, high = float(line["low"]), float(line["high"])
        px = lambda x: start + (x - low) / (high - low) * across  # noqa: E731
        ticks = [float(x) for x in re.findall(r"M([-\d.]+) ", tab.page.get_attribute(f"[data-line='{n}'] path.ticks", "d") or "")]
        assert ticks == pytest.approx([px(float(x)) for x in row], abs=CLOSE)
        assert ticks != pytest.approx([px(float(x)) for x in row.flip(0)], abs=CLOSE)  # the mutant: another order
        own = tab.page.eval_on_selector(f"[data-line='{n}'] [data-own]", "e => [+e.dataset.own, +e.getAttribute('x1')]")
        assert own[0] == pytest.approx(float(row[31]), rel=1e-7) and abs(own[1] - px(float(row[31]))) < CLOSE
        if n == 0:
            band = tab.page.eval_on_selector_all("[data-band]", RECTS)[0]
            assert abs(band["x"] - px(middle - size)) < CLOSE and abs(band["x"] + band["width"] - px(middle + size)) < CLOSE


def test_an_embedding_is_a_row_of_its_table(tab: Tab, runs: dict[str, Trace]) -> None:
    seen = opened(tab, runs, "embed", (0, 3, 17))
    id = runs["pellucid/capitals"].ids[3]
    cells = tab.page.eval_on_selector_all("[data-cell][data-number]", RECTS)
    assert [float(r["number"]) for r in cells] == seen.value[0, 3].tolist() != seen.value[0, 2].tolist()
    svg = tab.page.eval_on_selector("svg[data-rows]", SVG)
    assert (int(svg["row"]), int(svg["rows"])) == (id, 4480)
    taken = tab.page.eval_on_selector_all("[data-taken]", RECTS)[0]
    assert abs(taken["y"] - (1 + id / 4480 * (float(svg["height"]) - 4))) < CLOSE


def test_the_stream_has_one_scale_where_that_is_chosen(tab: Tab, runs: dict[str, Trace]) -> None:
    """Each tile's own greatest magnitude, or for the stream's tiles the greatest of all of them."""
    run = runs["pellucid/capitals"]
    tab.go(prompt=PROMPT)
    own = {path: float(run[path].value.abs().max()) for path in ("embed", "start", "layers.0.mid", "layers.0.attn_norm")}
    stream = [s for s in run if s.dims == "B T D" and not s.path.split(".")[-1].startswith(("attn", "ffn")) and s.path != "norm"]
    most = max(float(s.value.abs().max()) for s in stream)
    for shared in (False, True):
        tab.settle()
        for path, size in own.items():
            drawn = float(tab.page.get_attribute(f"[data-path='{path}'] [data-drawn]", "data-limit") or "nan")
            assert drawn == pytest.approx(most if shared and path != "layers.0.attn_norm" else size, rel=1e-6)
        tab.page.check("[data-together]")
    assert most > 2 * own["embed"]
