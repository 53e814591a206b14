"""The gallery: an exhibit's sentences and numbers on the page are Python's; controls, links and runs lead where they say.

A third of the exhibits and a panel of each kind are read off the page, with PELLUCID_FULL=1 every exhibit in both languages.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from playwright.sync_api import Browser, expect

from browser import Tab, address_of, next_load, open_file, open_offline_tab, open_tab, save_by_menu
from gallery import altered, document, ready, show
from pellucid.commands import main
from pellucid.documents.number import number
from pellucid.exhibits import names
from pellucid.messages import phrases, speaking

NAMES, OTHER, LLAMA = list(names()), "The capital of Japan is", "pellucid/capitals-llama"
FULL = os.environ.get("PELLUCID_FULL") == "1"
SLOW = {"balance", "depth", "kinds", "second"}  # which train for seconds, here and in the server, and have the others' kinds of panel
QUICK = sorted({*NAMES[2::4], "architectures", "equation", "heads"} - SLOW, key=NAMES.index)  # with the three it has every kind of panel
CASES = [(name, lang) for name in NAMES for lang in ("en", "zh")] if FULL else [*zip(QUICK, ["en", "zh"] * len(NAMES), strict=False)]
# Of each panel its title and every text in it that is a value or a name.
PANELS = """
  const texts = (node, selector) => [...node.querySelectorAll(selector)].map(e => e.textContent.trim());
  const parts = { answers: "h4, li bdi, li .number", table: "th, td", bars: ".name, .number",
    lines: "tbody th, tbody td", cube: "tbody th, tbody td", matrix: "tbody td", plane: "tbody th, tbody td", diagram: "h4, li p > *",
    network: ".about, .name, tbody td", text: ".line" };
  const panels = (node) => [...node.querySelectorAll("[data-panel]")].map(e => [texts(e, "h3")[0], ...texts(e, parts[e.dataset.panel])]);
"""
# Of the shown exhibit: its sentences and panels.
SHOWN = (
    "() => {"
    + PANELS
    + """
  const article = document.querySelector("article");
  return {
    title: texts(article, "h2")[0], said: texts(article, ".said s")[0], true: article.querySelector(".true").lastChild.textContent.trim(),
    claims: [...article.querySelectorAll("[data-claim]")].map(e =>
      [e.dataset.claim, e.querySelector(".mark").getAttribute("aria-label"), e.lastChild.textContent]),
    panels: panels(article),
  };
}"""
)


def expected(d: dict[str, Any], lang: str) -> dict[str, Any]:
    """Return what the page must show of a document, in the form of SHOWN."""
    words = phrases(lang)
    marks = {True: words["page.exhibits.holds"], False: words["page.exhibits.fails"]}
    panels = [[text.strip() for text in (p["title"], *DRAWN[p["kind"]](p, lang))] for p in d["panels"]]
    claims = [[c["key"], marks[c["holds"]], c["text"]] for c in d["claims"]]
    return {name: d["head"][name] for name in ("title", "said", "true")} | {"claims": claims, "panels": panels}


def written(values: Sequence[Any]) -> list[str]:
    """Write a column: counts with their thousands apart, where all are."""
    counts = all(v == int(v) for v in values if isinstance(v, int | float))
    return [v if isinstance(v, str) else "" if v is None else f"{int(v):,}" if counts else number(float(v)) for v in values]


def answers(p: dict[str, Any], lang: str) -> list[str]:
    sides = ([s["about"], *(t for c in s["candidates"] for t in (c["piece"], f"{number(100 * c['probability'])}%"))] for s in p["sides"])
    return [text for side in sides for text in side]


def table(p: dict[str, Any], lang: str) -> list[str]:
    columns = [written([row[j] for row in p["rows"]]) for j in range(len(p["columns"]))]
    return [*p["columns"], *(text for row in zip(*columns, strict=True) for text in row)]


def bars(p: dict[str, Any], lang: str) -> list[str]:
    texts = zip(p["bars"], written([b["value"] for b in p["bars"]]), strict=True)
    return [t for b, text in texts for t in (b["name"], "–" if b["value"] is None else f"{text} {p['unit']}".strip())]


def lines(p: dict[str, Any], lang: str) -> list[str]:
    every = written([v for s in p["series"] for v in s["values"]])
    size = len(p["at"])
    return [t for i, at in enumerate(written(p["at"])) for t in (at, *every[i::size])]


def matrix(p: dict[str, Any], lang: str) -> list[str]:
    every = [v for row in p["values"] for v in row]
    if len(every) > 1600:  # a picture without a table
        return []
    return [phrases(lang)["page.mask.hidden"] if v is None else text for v, text in zip(every, written(every), strict=True)]


def cube(p: dict[str, Any], lang: str) -> list[str]:
    every = written([0.5, *(v for one in p["values"] for row in one for v in row)])[1:]  # a fraction: no number is written as a count
    wide = len(p["values"][0][0])
    rows = zip(*[iter(every)] * wide, strict=True)
    return [t for b, row in zip(range(len(p["values"][0])), rows, strict=False) for t in (f"{p['axes'][1]} {b}", *row)]


def plane(p: dict[str, Any], lang: str) -> list[str]:
    every = [v for q in p["points"] for v in (q["x"], q["y"], *(q["moved"] or ()))]
    write = dict(zip(every, written(every), strict=True))
    return [
        t
        for q in p["points"]
        for t in (q["name"], write[q["x"]], write[q["y"]], "" if not q["moved"] else "→ " + ", ".join(write[v] for v in q["moved"]))
    ]


def diagram(p: dict[str, Any], lang: str) -> list[str]:
    return [t for s in p["stacks"] for t in (s["about"], *(t for b in s["boxes"] for t in (b["name"], b["note"]) if t))]


def network(p: dict[str, Any], lang: str) -> list[str]:
    weights = [w for between in p["weights"] for row in between for w in row]
    values = [n["value"] for c in p["columns"] for n in c["nodes"]]
    every = written([0.5, *weights, *values])[1:]  # a fraction, so that no number is written as a count
    own = iter(every[len(weights) :])
    names = [
        t for c in p["columns"] for t in (c["about"], *(f"{n['name']} {text}".rstrip() for n, text in zip(c["nodes"], own, strict=False)))
    ]
    return [*names, *every[: len(weights)]]


DRAWN: dict[str, Callable[[dict[str, Any], str], list[str]]] = {
    "answers": answers, "table": table, "bars": bars, "lines": lines, "matrix": matrix, "cube": cube, "plane": plane, "diagram": diagram,
    "network": network, "text": lambda p, lang: p["lines"],
}  # fmt: skip


TIMES = "exhibit.fastest", "exhibit.median"


def timeless(shown: dict[str, Any], d: dict[str, Any], lang: str) -> dict[str, Any]:
    """Return what is shown with a word in the place of each time that was measured, which is another in each run."""
    measured = {phrases(lang)[key] for key in TIMES}
    panels = [list(p) for p in shown["panels"]]
    for texts, p in zip(panels, d["panels"], strict=True):
        for j, column in enumerate(p["columns"] if p["kind"] == "table" else []):
            if column in measured:
                places = [1 + len(p["columns"]) * (1 + row) + j for row in range(len(p["rows"]))]
                assert all(float(texts[at].replace(",", "")) > 0 for at in places)
                texts[:] = [column if at in places else text for at, text in enumerate(texts)]
    return shown | {"panels": panels}


@pytest.fixture(scope="module")
def gallery(browser: Browser, address: str) -> Iterator[Tab]:
    """Open one tab for all exhibits."""
    with open_tab(browser, address) as tab:
        yield tab


@pytest.mark.parametrize(("name", "lang"), CASES)
@pytest.mark.quick(7)
def test_an_exhibit_shows_pythons_numbers(gallery: Tab, name: str, lang: str) -> None:
    show(gallery, name, lang)
    d = document(name, lang)
    assert timeless(gallery.page.evaluate(SHOWN), d, lang) == timeless(expected(d, lang), d, lang)
    assert not gallery.page.evaluate("document.documentElement.scrollWidth > innerWidth")


# A panel of each kind, with what is rare: no number, a negative one, halfway between two, a hidden cell, a box in a box.
EVERY: list[dict[str, Any]] = [
    {"kind": "table", "title": "t", "columns": ["a", "b", "c"], "rows": [["x", 194, 0.0625], ["y", None, 1e-7]], "marked": 1,
     "exhibits": None, "tinted": [2], "places": [{"row": 0, "column": 2, "path": "layers.0.attn.z", "cell": [0, 1, 2, 3], "run": 0}]},
    {"kind": "bars", "title": "b", "bars": [{"name": "p", "value": 1.5}, {"name": "q", "value": -0.1875}, {"name": "r", "value": None}],
     "unit": "MiB", "most": None},
    {"kind": "lines", "title": "l", "across": "context", "at": [128, 1024, 131072], "marked": None,
     "series": [{"name": "s", "values": [1, 2.5, 900]}, {"name": "with a very long name that is cut", "values": [0.5, None, 400]}]},
    {"kind": "matrix", "title": "m", "rows": ["·a", "·b"], "columns": ["·a", "·b"], "values": [[1.0, None], [0.25, 0.75]],
     "path": "layers.0.attn.pattern", "scale": "share", "cell": [0, 3, "row", "column"], "run": 0, "axes": ["query", "key"]},
    {"kind": "matrix", "title": "n", "rows": [str(i) for i in range(41)], "columns": [str(i) for i in range(40)],
     "values": [[i - j for j in range(40)] for i in range(41)], "path": None, "scale": "signed", "cell": [], "run": 0, "axes": []},
    {"kind": "cube", "title": "c", "axes": ["x", "y", "z"], "values": [[[1, -2.5]], [[0, 4]]], "path": "layers.0.attn.z"},
    {"kind": "plane", "title": "p", "across": "x", "up": "y",
     "points": [{"name": "u", "x": -1.5, "y": 2.0, "moved": [0.5, 0.25]}, {"name": "v", "x": 3.0, "y": 1.0, "moved": None}]},
    {"kind": "diagram", "title": "d", "stacks": [{"about": "s", "boxes": [
        {"name": "block", "note": "×4", "depth": 0, "marked": False}, {"name": "norm", "note": "", "depth": 1, "marked": True}]}]},
    {"kind": "network", "title": "k", "columns": [
        {"about": "inputs", "nodes": [{"name": "i", "value": 2.0}, {"name": "rest", "value": None}]},
        {"about": "words", "nodes": [{"name": "w", "value": -1.5}]}], "weights": [[[1.25], [-3.0]]]},
    {"kind": "text", "title": "e", "lines": ["q = x W", "p = softmax(q kᵀ)"]},
]  # fmt: skip


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.quick(2)
def test_panels_of_every_kind(tab: Tab, lang: str) -> None:
    d = json.loads(json.dumps(document("norms", lang)))
    d["panels"] += EVERY
    d["claims"][0]["holds"] = False
    assert {p["kind"] for p in d["panels"]} == DRAWN.keys()
    altered(tab, lambda given: given.update(d))
    show(tab, "norms", lang)
    assert tab.page.evaluate(SHOWN) == expected(d, lang)
    assert tab.page.locator("[data-panel] .hatch").count() == 1 and tab.page.locator("[data-panel] canvas").count() == 1
    assert tab.page.locator("li[data-marked=true] b").all_inner_texts() == ["norm"] and tab.page.locator("tr.marked th").inner_text() == "y"
    links = [unquote(a).replace("+", " ") for a in tab.page.locator("[data-tensor]").evaluate_all("all => all.map(a => a.hash)")]
    ends = ["layers.0.attn.z&cell=0,1,2,3", *(f"layers.0.attn.pattern&cell=0,3,{at}" for at in ("0,0", "1,0", "1,1"))]
    assert [link.partition("&tensor=")[2] for link in links] == ends and all(d["runs"][0]["prompt"] in link for link in links)
    assert tab.page.locator("[data-tinted]").count() == 2
    fills = tab.page.locator("[data-bar] .fill")
    widths = fills.evaluate_all("all => all.map(e => [parseFloat(e.style.left), parseFloat(e.style.width)])")
    assert widths == [pytest.approx([100 / 9, 800 / 9]), pytest.approx([0, 100 / 9])]


def test_a_slice_is_taken_off_a_cube(tab: Tab) -> None:
    show(tab, "heads", "en")
    cube = next(p for p in document("heads", "en")["panels"] if p["kind"] == "cube")
    own = tab.page.locator("[data-panel=cube]")
    before = own.locator("path").count()
    own.locator("[data-slice]").evaluate("e => { e.value = 2; e.dispatchEvent(new Event('input', { bubbles: true })) }")
    deep, high, wide = len(cube["values"]), len(cube["values"][0]), len(cube["values"][0][0])
    expect(own.locator("path")).to_have_count(before - 2 * (high + wide))
    assert before == high * wide + deep * (high + wide)
    first = own.locator("tbody td").first.text_content()
    assert first == number(cube["values"][2][0][0])


def test_another_number_would_be_seen(tab: Tab) -> None:
    """The mutants: one number of a panel, or of a claim, is another on its way to the page."""

    def change(given: dict[str, Any]) -> None:
        given["panels"][1]["series"][0]["values"][2] *= 1.01
        given["claims"][0]["text"] = given["claims"][0]["text"].replace("194", "193")

    altered(tab, change)
    show(tab, "norms", "en")
    seen, right = tab.page.evaluate(SHOWN), expected(document("norms", "en"), "en")
    assert seen["panels"][1] != right["panels"][1] and seen["claims"] != right["claims"]
    assert seen["panels"][0] == right["panels"][0]


def test_a_control_changes_it_and_a_link_restores_it(tab: Tab) -> None:
    show(tab, "norms", "en")
    before = tab.page.evaluate(SHOWN)
    tab.page.fill("[data-control=prompt]", OTHER)
    tab.page.keyboard.press("Enter")
    expect(tab.page.locator("[data-panel=answers] li").first).to_contain_text("Tokyo")
    ready(tab, "norms", "en")
    assert tab.page.evaluate(SHOWN) == expected(document("norms", "en", OTHER), "en") != before
    tab.page.select_option("[data-on]", LLAMA)
    tab.page.wait_for_function("location.hash.includes('on=')")
    ready(tab, "norms", "en")
    other = tab.page.evaluate(SHOWN)
    assert other == expected(document("norms", "en", OTHER, LLAMA), "en")
    link = address_of(tab.page)
    tab.page.goto(next_load(tab.address.split("#")[0] + "?lang=en") + link)
    ready(tab, "norms", "en")
    assert tab.page.evaluate(SHOWN) == other and tab.page.input_value("[data-control=prompt]") == OTHER


def test_a_card_opens_its_exhibit(tab: Tab) -> None:
    tab.go("zh", view="exhibits")
    cards = tab.page.locator("[data-exhibit]")
    expect(cards).to_have_count(len(NAMES))
    assert cards.evaluate_all("all => all.map(e => e.dataset.exhibit)") == NAMES
    assert cards.first.inner_text().split("\n") == [phrases("zh")[f"exhibit.{NAMES[0]}.{key}"] for key in ("title", "said")]
    cards.first.click()
    ready(tab, NAMES[0], "zh")
    tab.page.click(f"[data-turn={NAMES[1]}]")
    ready(tab, NAMES[1], "zh")
    tab.page.go_back()
    ready(tab, NAMES[0], "zh")
    tab.page.click(".way button >> nth=0")
    expect(cards).to_have_count(len(NAMES))


def test_a_run_opens_in_the_page(tab: Tab) -> None:
    show(tab, "norms", "en")
    tab.page.click("details > summary:has-text('Python')")
    assert tab.page.locator("article pre").inner_text().split("\n") == document("norms", "en")["python"]
    tab.page.click("[data-run='1'] a")
    tab.page.wait_for_selector("[data-switches='1']")
    tab.settle()
    words = re.sub(r"\s", "", tab.page.locator("[data-switches] li").inner_text())
    assert words.startswith("norm=none") and tab.page.locator("nav a[aria-current]").inner_text() == phrases("en")["page.view.life"]
    picked = document("norms", "en")["panels"][0]["sides"][1]["candidates"][0]["id"]
    assert int(tab.page.inner_text(".token.new .id")) == picked


def test_a_file_saved_by_the_page_shows_it(browser: Browser, address: str, tmp_path: Path) -> None:
    controls = json.dumps({"prompt": OTHER})
    with open_tab(browser, address) as tab:
        show(tab, "norms", "zh", controls=controls)
        with tab.page.expect_download() as download:
            save_by_menu(tab.page)
        download.value.save_as(tmp_path / "page.html")
    with open_offline_tab(browser, tmp_path / "page.html") as tab:
        open_file(tab, tmp_path / "page.html", 'article[data-shown="zh norms"]')
        assert tab.page.evaluate(SHOWN) == expected(document("norms", "zh", OTHER), "zh")


def test_a_file_saved_by_the_command_shows_it(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "exhibit.html"
    prompt = "法国的首都是"
    with speaking("zh"):
        assert main(["--json", "exhibit", "norms", "--set", f"prompt={prompt}", "--save", str(file)]) == 0
    with open_offline_tab(browser, file) as tab:
        open_file(tab, file, 'article[data-shown="zh norms"]')
        assert tab.page.evaluate(SHOWN) == expected(document("norms", "zh", prompt), "zh")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_what_does_not_exist_is_refused_in_one_line(browser: Browser, address: str, lang: str) -> None:
    with open_tab(browser, address, refusals=[400]) as tab:
        for fields, word in (({"exhibit": "norm"}, "norms"), ({"exhibit": "norms", "controls": '{"words": 1}'}, "words")):
            tab.go(lang, view="exhibits", **fields)
            line = tab.page.locator("article [role=alert]")
            expect(line).to_have_count(1)
            assert word in line.inner_text() and "\n" not in line.inner_text()
        assert tab.page.locator("[data-control]").count() == 1  # which may be set right
