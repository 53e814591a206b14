"""The sum of a cell as the page draws it, and the links from each of its numbers to the cell where that stands, beside Python's record."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser
from torch import Tensor

import pellucid
from browser import Tab, open_tab
from pellucid.api.model import Model
from pellucid.documents.number import number
from pellucid.messages import phrases
from pellucid.tracing import Trace
from pellucid.watching.records import Seen
from pellucid.watching.terms import Terms

PROMPT = "The capital of France is"
STEPS = 2
COLOURS = (Path(__file__).parents[2] / "web" / "src" / "draw" / "colour.ts").read_text(encoding="utf-8")
MAPS = {name: json.loads(stops) for name, stops in re.findall(r"^  (\w+): (\[\[.*\]\]),$", COLOURS, re.M)}
CAPITALS, LATENT, TRANSLATOR = "pellucid/capitals", "pellucid/capitals-deepseek", "pellucid/capitals-t5"
ENCODER = "pellucid/capitals-bert"
# Sums of every kind: products with and without a bias, of two tensors, of shared parts, over experts, of two numbers.
SUMS = [
    (CAPITALS, "layers.0.attn.q", 0), (CAPITALS, "layers.1.attn.scores", 1), (CAPITALS, "layers.0.attn.z", 0),
    (CAPITALS, "layers.2.mid", 0), (CAPITALS, "logits", 0), (LATENT, "layers.1.attn.scores", 0),
    (LATENT, "layers.1.ffn.routed_out", 0), (LATENT, "layers.1.ffn.down", 0),
    (LATENT, "layers.0.attn.q_rot", 0), (TRANSLATOR, "decoder.layers.1.attn.scores", 1), (ENCODER, "layers.0.attn.scores", 0),
]  # fmt: skip
LINKED = [
    (CAPITALS, "embed", 1), (CAPITALS, "positions", 1), (CAPITALS, "layers.0.attn_norm", 3), (CAPITALS, "layers.0.attn.pattern", 1),
    (CAPITALS, "layers.0.ffn.neurons", 1), (LATENT, "layers.0.ffn.neurons", 2), (LATENT, "layers.1.attn.v", 6),
    (LATENT, "layers.1.ffn.gate", 6), (LATENT, "layers.1.ffn.corrected", 2), (LATENT, "layers.1.ffn.share", 1),
    (LATENT, "layers.1.ffn.routed", 1),
    (TRANSLATOR, "decoder.layers.0.cross.z", 10),
]  # fmt: skip
RECTS = """all => all.map(e => ({ ...e.dataset, fill: getComputedStyle(e).fill, x: +e.getAttribute("x"), y: +e.getAttribute("y"),
  width: +e.getAttribute("width"), height: +e.getAttribute("height") }))"""
CLOSE = 0.011  # px of a coordinate with two decimals


@pytest.fixture(scope="module")
def runs() -> dict[str, tuple[Model, Trace]]:
    out = {}
    for name in (CAPITALS, LATENT, TRANSLATOR, ENCODER):
        model = pellucid.load(name, dtype="float32")
        text = f"{PROMPT} ___." if name == ENCODER else PROMPT
        out[name] = model, pellucid.trace(model, text, *([] if name == ENCODER else [STEPS]), terms=True)
    return out


def record(run: Trace, path: str, step: int) -> Seen:
    """Return the record of a step at a path."""
    return next(s for s in run if (s.path, s.step) == (path, step))


def inner(seen: Seen) -> tuple[int, ...]:
    """Return a cell away from the edges, of the last token."""
    return tuple(
        n - 1 if a in "TN" else min(1, n - 1) if a in "BHGS" else n // 3 for a, n in zip(seen.dims.split(), seen.shape, strict=True)
    )


def opened(tab: Tab, runs: dict[str, tuple[Model, Trace]], name: str, path: str, step: int, **place: Any) -> tuple[Seen, Terms]:
    """Open a cell whose numbers are all linked. Returns its record and its terms."""
    run = runs[name][1]
    seen = record(run, path, step)
    at = inner(seen)
    tab.open_cell(path, at, model=name, prompt=run.prompt, **({} if name == ENCODER else {"steps": STEPS, "step": step}), **place)
    tab.settle()
    assert seen.terms is not None
    return seen, seen.terms(at)


def colour(x: float, limit: float, name: str) -> tuple[int, ...]:
    """Return the colour of a signed number, by the root of its size."""
    share = x / limit if limit else 0.0
    stops, t = MAPS[name], (math.copysign(math.sqrt(abs(share)), share) + 1) / 2
    where = min(1.0, max(0.0, t)) * (len(stops) - 1)
    i = min(len(stops) - 2, int(where))
    return tuple(math.floor(a + (b - a) * (where - i) + 0.5) for a, b in zip(stops[i], stops[i + 1], strict=True))


def strips(terms: Terms) -> dict[str, list[float]]:
    """Return the numbers of the strips in the order of the picture's rows: factors that vary, then the summands."""
    products = len(terms.summands) - len(terms.added)
    varying = {n: f.tolist() for n, f in terms.factors.items() if products == 1 or len(f.unique()) > 1}
    if not varying and products:
        varying = {n: f.tolist() for n, f in terms.factors.items()}
    return varying | {"product": terms.summands.tolist()}


def faults(tab: Tab, terms: Terms, name: str = "signed") -> list[object]:
    """Return what is drawn otherwise than the terms: numbers, colours, the order, and the sum so far in pixels."""
    out: list[object] = []
    rects = tab.page.eval_on_selector_all("[data-strip]", RECTS)
    rows = list(dict.fromkeys(r["strip"] for r in rects))
    expected = strips(terms)
    order = sorted(range(len(terms.summands)), key=lambda i: (-abs(float(terms.summands[i])), i))
    if len(rows) != len(expected) or rows[-1] != "product":
        return [rows, list(expected)]
    shown = [int(r["term"]) for r in rects if r["strip"] == "product"]
    if shown != order[: len(shown)] or len(shown) < min(40, len(order)):
        out.append(("order", shown[:5], order[:5]))
    for row, numbers in zip(rows, expected.values(), strict=True):
        limit = max(map(abs, numbers))
        for r in (r for r in rects if r["strip"] == row):
            x = numbers[int(r["term"])]
            if float(r["number"]) != x or tuple(map(int, re.findall(r"\d+", r["fill"]))) != colour(x, limit, name):
                out.append((row, r, x, colour(x, limit, name)))
    svg = tab.page.eval_on_selector(".strips svg", "e => ({ ...e.dataset })")
    low, high, top, tall = (float(svg[k]) for k in ("low", "high", "top", "height"))
    y = lambda x: top + tall * (high - x) / (high - low)  # noqa: E731
    ways, total = tab.page.eval_on_selector_all("[data-way]", RECTS), 0.0
    for r in ways:
        before, total = total, total + float(terms.summands[int(r["way"])])
        edges = sorted((y(before), y(total)))
        if abs(r["y"] - edges[0]) > CLOSE or abs(r["height"] - max(0.75, edges[1] - edges[0])) > CLOSE:
            out.append(("way", r, before, total))
    line = tab.page.eval_on_selector("[data-total]", "e => [+e.dataset.total, +e.getAttribute('y1')]")
    if line[0] != terms.total() or abs(line[1] - y(terms.total())) > CLOSE:
        out.append(("total", line, terms.total()))
    rest = tab.page.eval_on_selector_all("[data-rest]", RECTS)
    if len(rest) != (len(ways) < len(terms.summands)) or any(abs(float(r["rest"]) - (terms.total() - total)) > 1e-12 for r in rest):
        out.append(("rest", rest))
    return out


def bent(terms: Terms) -> Terms:
    """Return the terms with one number changed in its last digits: what a wrong picture would be of."""
    other = Terms(**{n: f.clone() for n, f in terms.factors.items()}).plus(**terms.added)
    if other.factors:
        first = next(iter(other.factors))
        other.factors[first] = other.factors[first].clone()
        other.factors[first][0] *= 1 + 1e-5
    else:
        first = next(iter(other.added))
        other.added[first] *= 1 + 1e-5
    return other


@pytest.mark.parametrize(("name", "path", "step"), SUMS)
@pytest.mark.quick(10)
def test_a_sum_is_drawn_term_by_term(tab: Tab, runs: dict[str, tuple[Model, Trace]], name: str, path: str, step: int) -> None:
    _, terms = opened(tab, runs, name, path, step)
    assert faults(tab, terms) == []
    assert faults(tab, bent(terms)) != []


def test_it_is_drawn_in_the_dark_too_and_fits_a_narrow_window(browser: Browser, address: str, runs: dict[str, tuple[Model, Trace]]) -> None:
    with open_tab(browser, address, color_scheme="dark", viewport={"width": 390, "height": 844}) as tab:
        _, terms = opened(tab, runs, CAPITALS, "layers.1.ffn", 0, lang="zh")
        assert faults(tab, terms, "night") == []
        assert faults(tab, terms, "signed") != []
        assert not tab.page.evaluate("document.documentElement.scrollWidth > innerWidth")
        shown = tab.page.locator("[data-strip=product]").count()
        assert shown < len(terms.summands) == 513
        assert phrases("zh")["page.drawn.left"].split("{")[0] in tab.page.inner_text("#term")


def at(model: Model, run: Trace, to: str) -> float:
    """Return the number of a link "path cell@step": of a record, or of a weight."""
    match = re.fullmatch(r"(\S+) ([\d,]+)(?:@(\d+))?", to)
    assert match is not None
    cell = tuple(map(int, match[2].split(",")))
    places = next((s for s in run if (s.path, s.step, len(s.shape)) == (match[1], int(match[3] or 0), len(cell))), None)
    tensor: Tensor = (
        places.value if places is not None else dict([*model.module.named_parameters(), *model.module.named_buffers()])[match[1]]
    )
    return float(tensor.detach()[cell])


def links(tab: Tab) -> Iterator[tuple[str, str, int, int]]:
    """Yield every link of the open cell: its text, where it leads, its term and column in the table; -1 for one of the formula."""
    formula = tab.page.eval_on_selector_all(".formula [data-follow]", "all => all.map(e => [e.innerText, e.dataset.follow])")
    yield from ((text, to, -1, i) for i, (text, to) in enumerate(formula))
    if tab.page.locator("aside [data-terms]").count():
        if not tab.page.locator("aside [data-terms] tbody").count():
            tab.page.click("aside [data-terms] summary")
            tab.page.wait_for_selector("aside [data-terms] tbody tr")
        yield from map(tuple, tab.page.eval_on_selector_all(
            "aside [data-terms] [data-follow]",
            "all => all.map(e => [e.innerText, e.dataset.follow, +e.closest('tr').dataset.term, e.closest('td').cellIndex - 1])",
        ))  # fmt: skip


@pytest.mark.parametrize(("name", "path", "step"), SUMS)
@pytest.mark.quick(10)
def test_each_number_of_a_sum_leads_to_where_it_stands(
    tab: Tab, runs: dict[str, tuple[Model, Trace]], name: str, path: str, step: int
) -> None:
    model, run = runs[name]
    seen, terms = opened(tab, runs, name, path, step)
    places = list(links(tab))
    table = [(to, term, column) for _, to, term, column in places if term >= 0]
    factors = [f.tolist() for n, f in terms.factors.items() if n not in ("scale", "turn")]
    products = len(terms.summands) - len(terms.added)
    shown_rows = min(200, len(terms.summands))
    added = list(terms.added.values())
    assert len(table) >= shown_rows * max(1, len(factors)) - len(added) * max(0, len(factors) - 1)
    for to, term, column in table:
        record = next((s for s in run if to.split()[0] == s.path and (s.source == "recomputed" or ".pattern" in to)), None)
        expected = factors[column][term] if term < products else added[term - products]
        assert at(model, run, to) == (expected if record is None else pytest.approx(expected, abs=2e-6 * max(1, abs(expected)))), (to, term)
    assert {to.split()[0] for to, *_ in table} >= {
        p for p in seen.inputs if "attn.q" not in p and "attn.k" not in p and ".latent" not in p
    } or path.endswith(".z")


@pytest.mark.parametrize(("name", "path", "count"), LINKED)
@pytest.mark.quick(10)
def test_numbers_of_formulas_lead_there_too(tab: Tab, runs: dict[str, tuple[Model, Trace]], name: str, path: str, count: int) -> None:
    model, run = runs[name]
    _, terms = opened(tab, runs, name, path, 0)
    places = {to: text.removeprefix("-") for text, to, term, _ in links(tab) if term < 0}
    assert len(places) == count
    numbers = [*(x for f in terms.factors.values() for x in f.tolist()), *terms.added.values(), *terms.about.values()]
    for to, text in places.items():
        value = at(model, run, to)
        again = ".pattern" in to  # in float32, of which the terms have float64
        assert (again or number(abs(value)) == text) and any(abs(value - x) <= (2e-6 if again else 0) for x in numbers), to
        near = re.sub(r"(\d+)(?=@|$)", lambda m: str(int(m[1]) ^ 1), to)  # the mutant: the neighbour
        with pytest.raises((AssertionError, IndexError)):
            assert number(abs(at(model, run, near))) == text
