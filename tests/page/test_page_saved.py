"""The page saved as one file, opened with the network off: the same values, no request, no script but its own."""

import hashlib
import os
import re
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser

import pellucid
from browser import download_page, open_file, open_offline_tab, open_tab
from pellucid.tracing import Trace

PROMPT = "The capital of France is"
FULL = bool(os.environ.get("PELLUCID_FULL"))
EVIL = [
    "</script><script>window.__pwned=1</script>",
    "<!--<script>window.__pwned=1//",
    "<img src=x onerror=window.__pwned=1>",
    "\u2028]]></style><svg onload=window.__pwned=1>",
]


@pytest.fixture(scope="module")
def file(browser: Browser, address: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return download_page(
        browser, address, tmp_path_factory.mktemp("saved"), prompt=PROMPT, steps=2, tensor="layers.0.attn.scores", cell="0,1,4,3"
    )


@pytest.fixture(scope="module")
def run() -> Trace:
    return pellucid.trace(pellucid.load("pellucid/capitals", dtype="float32"), PROMPT, 2, terms=True)


def test_a_saved_file_opens_where_it_was_left(browser: Browser, file: Path, run: Trace) -> None:
    with open_offline_tab(browser, file) as tab:
        open_file(tab, file, '#reading[data-cell="0,1,4,3"]:not([data-value=""])')
        terms, seen = run.all("layers.0.attn.scores")[0].terms, run.all("layers.0.attn.scores")[0].value
        assert terms is not None
        assert tab.formula_sum() == terms((0, 1, 4, 3)).total()
        reading = tab.page.get_attribute("#reading", "data-value") or "nan"
        assert float(torch.tensor(float(reading), dtype=torch.float32)) == float(seen[0, 1, 4, 3])
        assert [int(x) for x in tab.page.locator(".token .id").all_inner_texts()] == run.ids + run.new
        cards = tab.page.locator(".river [data-path]").evaluate_all("all => all.map(c => c.dataset.path)")
        assert set(cards) < {s.path for s in run if s.step == 0} and len(cards) > 20


@pytest.mark.parametrize("path", ["embed", "layers.0.attn.q", "layers.3.attn.pattern", "layers.1.ffn.neurons", "logits"])
@pytest.mark.quick(4)
def test_a_saved_files_bytes_are_the_runs(browser: Browser, file: Path, run: Trace, path: str) -> None:
    value = run.all(path)[0].value
    at = tuple(n // 2 for n in value.shape)
    cell = ",".join(map(str, at))
    with open_offline_tab(browser, file) as tab:
        open_file(tab, file, f'#reading[data-cell="{cell}"]:not([data-value=""])', tensor=path, cell=cell)
        reading = tab.page.get_attribute("#reading", "data-value") or "nan"
        assert float(torch.tensor(float(reading), dtype=torch.float32)) == float(value[at])
        tab.page.wait_for_selector('[data-received]:not([data-received=""])')
        hashed = tab.page.locator("[data-received]")
        words = (hashed.get_attribute("data-at") or "").split(",")
        part = value[tuple(slice(*map(int, w.split(":"))) if ":" in w else int(w) for w in words)]
        own = hashlib.sha256(part.contiguous().numpy().tobytes()).hexdigest()
        assert hashed.get_attribute("data-received") == hashed.get_attribute("data-source") == own


def test_a_saved_files_views_work(browser: Browser, file: Path, run: Trace) -> None:
    with open_offline_tab(browser, file) as tab:
        open_file(tab, file, "[data-pick]", view="next", sampling="temperature:2 seed:3")
        assert len(tab.page.workers) == 1  # of a file, too
        best = run.all("logits")[0].value[0, -1]
        first_id = tab.page.get_attribute("tr[data-id] >> nth=0", "data-id")
        assert first_id == str(int(best.argmax()))
        open_file(tab, file, "[data-weight]", view="attention", block="layers.2", head=1, position=3)
        weights = tab.page.eval_on_selector_all("[data-weight]", "cells => cells.map(c => Number(c.dataset.weight))")
        assert torch.equal(torch.tensor(weights, dtype=torch.float32), run.all("layers.2.attn.pattern")[0].value[0, 1, 3])
        open_file(tab, file, "tr[data-step='1'] [data-total]", view="cache")
        assert tab.page.locator("nav a").all_inner_texts() == ["Map", "Life", "Attention", "Next token", "Cache"]
        tab.page.click(".share .opener")
        assert tab.page.locator("[data-share='html'], form .run").count() == 0 < tab.page.locator("[data-share='png']").count()


def test_a_saved_cell_gives_its_sum_or_says_why_not(browser: Browser, file: Path, run: Trace) -> None:
    """A cell that was not pointed at before the page was saved has its sum, or a sentence that the file lacks it."""
    sums = 0
    with open_offline_tab(browser, file) as tab:
        for path in ("layers.0.attn.q", "layers.1.attn.scores", "layers.2.ffn.neurons", "layers.3.attn.z"):
            seen = run.all(path)[1]
            assert seen.terms is not None
            at = tuple(int(i) for i in torch.unravel_index(seen.value.argmax(), seen.shape))
            cell = ",".join(map(str, at))
            open_file(tab, file, f'#reading[data-cell="{cell}"]:not([data-value=""])', steps=2, step=1, tensor=path, cell=cell)
            tab.page.wait_for_selector("[data-sum], aside > p.soft")
            if tab.page.locator("[data-sum]").count() > 0:
                assert tab.formula_sum() == seen.terms(at).total()
                sums += 1
            else:
                assert "is not in this file, which carries those of" in tab.page.inner_text("aside > p.soft")
    assert sums > 0


def test_a_file_that_was_saved_from_change_opens_on_no_dead_form(browser: Browser, address: str, tmp_path: Path) -> None:
    file = download_page(browser, address, tmp_path, view="change", prompt=PROMPT)
    with open_offline_tab(browser, file) as tab:
        open_file(tab, file, "[data-unchanged]")
        assert tab.page.locator("main form").count() == 0
        open_file(tab, file, ".river [data-path]", view="life")
        assert tab.page.locator(".river [data-path]").count() > 20
        open_file(tab, file, "tr[data-step='0'] [data-total]", view="cache")
        assert tab.page.locator("main form button:not([type=button]), main form input[type=number]").count() == 0


@pytest.mark.parametrize("text", EVIL if FULL else EVIL[:2])
@pytest.mark.quick(2)
def test_a_text_in_a_saved_file_is_only_text(browser: Browser, address: str, tmp_path: Path, text: str) -> None:
    file = download_page(browser, address, tmp_path, prompt=text)
    with open_offline_tab(browser, file) as tab:
        open_file(tab, file, "main nav")
        tab.page.wait_for_timeout(200)
        assert tab.page.evaluate("window.__pwned") is None
        assert tab.page.input_value("#prompt") == text


def test_a_saved_file_runs_no_other_script(browser: Browser, file: Path, tmp_path: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert len(re.findall(r"<script", re.sub(r'<script type="module">.*?</script>', "<script></script>", text, flags=re.S))) == 2
    assert not re.search(r"(?:src|href)=\"(?!data:)", text.split("<style>")[0])
    other = tmp_path / "other.html"
    head, tail = text.rsplit("</body>", 1)
    other.write_text(f"{head}<script>window.__pwned=1</script><img src=x onerror='window.__pwned=2'></body>{tail}", encoding="utf-8")
    with open_tab(browser, f"{other.as_uri()}#", offline=True) as tab:
        open_file(tab, other, "main nav")
        assert tab.page.evaluate("window.__pwned") is None
        tab.problems.remove(f"{tmp_path.as_uri()}/x")  # the picture's request, which the policy ends before it is sent
        assert tab.faults and all("Content Security Policy" in f for f in tab.faults)
        tab.problems.clear()
    bare = tmp_path / "bare.html"
    bare.write_text(re.sub(r'<meta http-equiv="Content-Security-Policy".*?/>', "", other.read_text(encoding="utf-8")), encoding="utf-8")
    with open_tab(browser, f"{bare.as_uri()}#", offline=True) as tab:
        open_file(tab, bare, "main nav")
        assert tab.page.evaluate("window.__pwned") is not None  # it is the policy that stops it
        tab.problems.clear()
