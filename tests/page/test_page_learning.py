"""A run of training on the page: one step is shown in every picture, and a cell's gradient is the sum that Python gives."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, expect

import pellucid
from browser import download_page, open_file, open_offline_tab, open_tab, serve_from_thread
from pellucid.documents.training import TrainingDocument, training_document
from pellucid.documents.why import tile_document, why_document
from pellucid.messages import phrases, speaking
from pellucid.runs.answers import piece_of, visible
from test_page_access import AXE, VIOLATIONS
from test_page_exhibits import DRAWN, PANELS
from test_page_layout import complaints
from watched_runs import WATCHED, watched_run

WEIGHT, CELL = "layers.1.ffn.down.weight", (5, 17)
SHOWN = f"() => {{ {PANELS} return panels(document); }}"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pellucid.Run:
    return watched_run(tmp_path_factory.mktemp("film"))


@pytest.fixture(scope="module")
def film(run: pellucid.Run) -> Iterator[str]:
    with serve_from_thread(str(run.folder)) as address:
        yield address


def expected(document: TrainingDocument, lang: str) -> list[list[str]]:
    """Return the texts of a document's panels, in the form of SHOWN."""
    panels: list[Any] = list(document["panels"])
    return [[text.strip() for text in (p["title"], *DRAWN[p["kind"]](p, lang))] for p in panels]


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.quick(2)
def test_every_picture_follows_the_scrubber(browser: Browser, film: str, run: pellucid.Run, lang: str) -> None:
    with open_tab(browser, film) as tab:
        tab.go(lang, view="")
        for i, step in reversed(list(enumerate(WATCHED))):
            tab.page.locator("input[type=range]").fill(str(i))
            tab.page.wait_for_selector(f"[data-step='{step}']")
            tab.settle()
            with speaking(lang):
                assert tab.page.evaluate(SHOWN) == expected(training_document(run, step), lang)
            marks = tab.page.locator("[data-marked]").evaluate_all("all => all.map(e => e.dataset.marked)")
            evaluated = [str(step)] if step > 1 else []
            assert sorted(marks) == sorted([str(step)] * 2 + evaluated)
        assert not tab.page.evaluate("document.documentElement.scrollWidth > innerWidth")
        assert tab.page.inner_text("nav a[aria-current]") == phrases(lang)["page.view.learning"]


def test_a_step_late_would_be_seen(browser: Browser, film: str, run: pellucid.Run) -> None:
    """The mutant: the page gets the step before."""

    def earlier(route: Route) -> None:
        route.continue_(url=route.request.url.replace("step=8", "step=4"))

    with open_tab(browser, film) as tab:
        tab.page.route("**/api/training?*", earlier)
        tab.go(trained=8, view="learning")
        tab.page.wait_for_selector("[data-step]")
        with speaking("en"):
            assert tab.page.evaluate(SHOWN) != expected(training_document(run, 8), "en")


def test_a_cell_opens_its_tokens(browser: Browser, film: str, run: pellucid.Run) -> None:
    why = run.why(WEIGHT, CELL, 8)
    with open_tab(browser, film) as tab:
        tab.go(trained=8, view="learning")
        tab.page.select_option("[data-weight]", WEIGHT)
        tab.page.fill("[data-cell]", "5,17")
        tab.page.click("[data-why]")
        sums = tab.page.locator("[data-gradient]")
        expect(sums).to_have_count(1)
        assert float(sums.get_attribute("data-gradient") or "nan") == why.gradient
        assert float(sums.get_attribute("data-total") or "nan") == why.total()
        products = tab.page.locator("[data-product]").evaluate_all("all => all.map(e => Number(e.dataset.product))")
        assert products == [token.product for token in why.tokens[: len(products)]] and len(products) > 5
        assert run.text(why.tokens[0].document) in tab.page.locator("[data-product]").first.inner_text()
        document = why_document(run, 8, WEIGHT, CELL)
        pulls = tab.page.locator("[data-pull]").evaluate_all("all => all.map(e => [e.textContent, Number(e.dataset.pull)])")
        wanted = [(p["piece"], p["sum"]) for d in document["documents"] for p in d["pieces"]]
        assert [pull for _, pull in pulls] == [pull for _, pull in wanted] and any(pull for _, pull in pulls)
        moved = tab.page.locator("[data-moved]").evaluate_all("all => all.map(e => Number(e.dataset.moved))")
        assert moved == [x for row in tile_document(run, 8, WEIGHT, CELL)["moved"] for x in row]
        assert moved == run.watched[8].updates[WEIGHT][:12, :24].double().flatten().tolist()
        tab.page.locator("[aria-label^='[3,2]']").click()
        expect(sums).not_to_have_attribute("data-gradient", str(why.gradient))
        assert float(sums.get_attribute("data-gradient") or "nan") == run.why(WEIGHT, (3, 2), 8).gradient
        assert tab.page.input_value("[data-cell]") == "3,2"
        tab.page.fill("[data-cell]", "5,999")
        tab.page.click("[data-why]")
        expect(tab.page.locator("[role=alert]")).to_contain_text("999")
        tab.refusals.add(400)


HEADINGS = "all => all.map(t => [...(t.tHead?.rows[0]?.cells ?? [{ textContent: '' }])].map(c => c.textContent.trim()))"


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_column_has_a_heading(browser: Browser, film: str, lang: str) -> None:
    """A picture whose rows and columns are numbers alone says what they are."""
    with open_tab(browser, film) as tab:
        tab.go(lang, view="learning", trained=8, weight=f"{WEIGHT} 5,17")
        expect(tab.page.locator("[data-gradient]")).to_have_count(1)
        tab.settle()
        headings = tab.page.eval_on_selector_all("main table", HEADINGS)
        assert len(headings) > 5 and [h for h in headings if "" in h] == []
        corners = {" ".join(text.split()) for text in tab.page.locator("[data-corner]").all_inner_texts()}
        words = phrases(lang)
        step = f"↓ {words['training.parameter']} → {words['training.step']}"
        assert {step, f"↓ {words['page.learning.row']} → {words['page.learning.column']}"} <= corners
        tab.page.evaluate("document.querySelector('[data-corner]').textContent = ' '")
        assert [h for h in tab.page.eval_on_selector_all("main table", HEADINGS) if "" in h] != []  # an empty one would be seen


@pytest.mark.parametrize(("dark", "width"), [(False, 390), (True, 1440)])
@pytest.mark.quick(2)
def test_axe_finds_nothing(browser: Browser, film: str, dark: bool, width: int) -> None:
    if not AXE.is_file():
        pytest.skip("web/node_modules is not installed")
    with open_tab(browser, film, viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light") as tab:
        tab.go("zh" if dark else "en", view="learning", trained=8, weight=f"{WEIGHT} 5,17")
        expect(tab.page.locator("[data-gradient]")).to_have_count(1)
        tab.settle()
        tab.page.evaluate(AXE.read_text(encoding="utf-8"))
        assert (wrong := tab.page.evaluate(VIOLATIONS)) == [], json.dumps(wrong, ensure_ascii=False)
        assert not tab.page.evaluate("document.documentElement.scrollWidth > innerWidth")


@pytest.mark.parametrize(("dark", "lang"), [(False, "en"), (True, "zh")])
@pytest.mark.quick(2)
def test_nothing_is_cut_on_a_phone_and_a_tablet(browser: Browser, film: str, dark: bool, lang: str) -> None:
    """Of the run, and of one with many lines in a picture and many points in a plane."""

    def many(route: Route) -> None:
        document = route.fetch().json()
        for p in document["panels"]:
            if p["kind"] == "lines":
                p["series"] = [s | {"name": f"{s['name']} {n}"} for s in p["series"] for n in range(5)]
            if p["kind"] == "plane":
                p["points"] = [q | {"name": f"词 word {n}", "moved": None} for q in p["points"] for n in range(4)]
        route.fulfill(json=document)

    with open_tab(browser, film, color_scheme="dark" if dark else "light") as tab:
        place = {"view": "learning", "trained": 8, "weight": f"{WEIGHT} 5,17"}
        for crowded in (False, True):
            if crowded:
                tab.page.route("**/api/training?*", many)
            tab.go(lang, **place)
            expect(tab.page.locator("[data-gradient]")).to_have_count(1)
            tab.settle()
            for width in (390, 768):
                tab.page.set_viewport_size({"width": width, "height": 900})
                tab.settle()
                assert complaints(tab.page) == []
        names = [t.rpartition(" ")[2] for t in tab.page.locator("[data-panel=lines] svg .name").all_text_contents()]
        assert {"0", "1", "2", "3", "4"} <= set(names) and len(names) > 25
        assert tab.page.locator("[data-panel=plane] [data-named]").count() > 20
        moved = tab.page.locator("[data-moved]").first.evaluate("e => getComputedStyle(e).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", moved))) < 384) == dark  # a cell near 0 is as dark as the page
        tab.page.eval_on_selector("[data-panel=lines] svg", "e => e.setAttribute('viewBox', '0 0 460 120')")  # the picture that it was
        assert any(text.startswith("cut by") for text in complaints(tab.page))


def test_a_piece_is_written_as_on_every_view(browser: Browser, film: str, run: pellucid.Run) -> None:
    """Half of a letter by its bytes, a space as a point: in the table, the texts and the pattern."""
    tokenizer = run.tokenizer
    assert tokenizer is not None
    why = run.why(WEIGHT, CELL, 8)
    ids = [token.id for token in why.tokens[:20]]
    written = [visible(piece_of(tokenizer, i)) for i in ids]
    assert any(text.startswith("<") for text in written) and "·" in written
    with open_tab(browser, film) as tab:
        tab.go(view="learning", trained=8, weight=f"{WEIGHT} 5,17")
        expect(tab.page.locator("[data-gradient]")).to_have_count(1)
        assert tab.page.locator("[data-product] td:first-child").all_inner_texts() == written
        assert "\ufffd" not in tab.page.inner_text("main")


def test_a_saved_file_has_every_step(browser: Browser, film: str, run: pellucid.Run, tmp_path: Path) -> None:
    file = download_page(browser, film, tmp_path, lang="zh", view="learning")
    with open_offline_tab(browser, file) as tab:
        open_file(tab, file, "[data-step]")
        for i in (0, 2):
            tab.page.locator("input[type=range]").fill(str(i))
            tab.page.wait_for_selector(f"[data-step='{WATCHED[i]}']")
            with speaking("zh"):
                assert tab.page.evaluate(SHOWN) == expected(training_document(run, WATCHED[i]), "zh")


def test_a_saved_file_keeps_the_view_that_it_was_saved_from(browser: Browser, film: str, tmp_path: Path) -> None:
    """Not that for which its server was opened."""
    file = download_page(browser, film, tmp_path, view="life")
    with open_offline_tab(browser, file) as tab:
        open_file(tab, file, "main nav a[aria-current]")
        assert tab.page.inner_text("main nav a[aria-current]") == phrases("en")["page.view.life"]


def test_a_run_that_goes_on_is_followed(browser: Browser, tmp_path: Path) -> None:
    """The log grows while the page is open."""
    run = watched_run(tmp_path)
    log = run.folder / "log.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    log.write_text("".join(lines[:8]), encoding="utf-8")
    with serve_from_thread(str(run.folder)) as address, open_tab(browser, address) as tab:
        tab.go(view="")
        expect(tab.page.locator("[data-taken]")).to_have_attribute("data-taken", "8")
        log.write_text("".join(lines), encoding="utf-8")
        expect(tab.page.locator("[data-taken]")).to_have_attribute("data-taken", "12")
