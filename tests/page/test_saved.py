"""The HTML file that Python writes has Python's numbers, in a real Chromium without a network."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, expect
from torch import Tensor

import pellucid
from browser import Tab, download_page, open_file, open_offline_tab, open_tab, turn_file
from pellucid import html as written_page
from pellucid.api.model import Model, load
from pellucid.documents.cell_columns import Columns
from pellucid.documents.number import number
from pellucid.html import file as pages
from pellucid.html.recording import recording
from pellucid.html.shown import subject
from pellucid.messages import filled, phrases
from pellucid.tracing import Trace
from pellucid.watching.records import Seen

PROMPT = "The capital of France is"
KINDS = ["embed", "layers.0.attn_norm", "layers.0.attn.q", "layers.1.attn.scores", "layers.1.attn.pattern", "layers.0.attn.z"]
KINDS += ["layers.0.mid", "layers.1.ffn.neurons", "layers.1.ffn", "logits"]
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2**-7}  # of a sum, beside the sum of magnitudes
LISTED = 200  # terms that the page lists; it adds up the rest
PAYLOADS = [
    "<img src=x onerror=window.__pwned=1>",
    "</script><script>window.__pwned=1</script>",
    "--></style><svg onload=window.__pwned=1>",
    "<!--<script>window.__pwned=1//",
    "javascript:window.__pwned=1",
    '"><iframe srcdoc="<script>parent.__pwned=1</script>">',
    "'><iframe srcdoc='<script>parent.__pwned=1</script>'>",
    "{{script}} {{7*7}} ${window.__pwned=1} `${1}`",
    "&lt;b&gt; &amp; \u2028 \\u003cscript\\u003e",
    "'-window.__pwned=1-'",
    "a\u202egnp.exe\u200b\x07",
]


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Return the prompt's trace in float32, with the terms of its cells."""
    return pellucid.trace(load("pellucid/capitals", dtype="float32"), PROMPT, 2, terms=True)


@pytest.fixture(scope="module")
def file(trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "trace.html"
    trace.save_html(path, cells=4000)
    return path


def recorded(text: str) -> dict[str, Any]:
    """Return the data in a page."""
    match = re.search(r'<script type="application/json" id="recorded">(.*?)</script>', text, re.S)
    assert match is not None
    data: dict[str, Any] = json.loads(match[1])
    return data


def greatest(seen: Seen) -> tuple[int, ...]:
    """Return the last token's greatest cell."""
    axes = seen.dims.split()
    last = [slice(n - 1, n) if a == "T" else slice(0, n) for a, n in zip(axes, seen.shape, strict=True)]
    cut = seen.value[tuple(last)]
    at = torch.unravel_index(cut.argmax(), cut.shape)
    return tuple(n - 1 if a == "T" else int(i) for a, n, i in zip(axes, seen.shape, at, strict=True))


def read(tab: Tab) -> str:
    """Return the page's number of the cell under the cursor."""
    return tab.page.get_attribute("#reading", "data-value") or ""


def check(tab: Tab, file: Path, seen: Seen) -> None:
    """Check one cell of a tensor: its value on the page is Python's to the last bit, and so are the terms that sum to it."""
    index = greatest(seen)
    cell = ",".join(map(str, index))
    here = f'aside[aria-label="{seen.path}"] #reading[data-cell="{cell}"]:not([data-value=""])'
    turn_file(tab, file, here, tensor=seen.path, cell=cell)
    value = seen.value[index]
    assert torch.equal(torch.tensor(float(read(tab)), dtype=seen.dtype), value), (read(tab), value)
    assert seen.terms is not None
    terms = seen.terms(index)
    assert tab.formula_sum() == terms.total()
    products = terms.summands.tolist()
    if len(products) > 1:
        tab.page.click("aside details summary")
        tab.page.uncheck("aside .sort input")
        rows = tab.page.eval_on_selector_all("aside details tbody tr", "rows => rows.map(r => Array.from(r.cells, c => c.textContent))")
        count = len(products) - len(terms.added)  # behind the products stand the added terms, by their names
        if count:
            factors = torch.stack(list(terms.factors.values()), 1)[:LISTED]
            assert torch.equal(torch.tensor([[float(x) for x in row[1:-2]] for row in rows[:count]]), factors.float())
        assert all(len(row) == 4 for row in rows[count:])
        assert [row[-2] for row in rows] == [number(p) for p in products[:LISTED]]
    assert abs(math.fsum(products) - float(value)) <= ROUNDING[seen.dtype] * sum(map(abs, products))


def test_it_is_the_file_that_the_page_writes(browser: Browser, address: str, trace: Trace, tmp_path: Path) -> None:
    """Both files are equal byte for byte outside their data, and their data has the same answers and the same bytes."""
    place = {"tensor": "layers.0.attn.scores", "cell": "0,1,4,3"}
    theirs = download_page(browser, address, tmp_path, prompt=PROMPT, steps=2, **place).read_text(encoding="utf-8")
    ours = written_page.html(trace, cells=0)
    outer = [re.sub(r'id="recorded">.*?</script>', "", text, count=1, flags=re.S) for text in (ours, theirs)]
    assert outer[0] == outer[1]
    a, b = (recorded(text) for text in (ours, theirs))
    runs = [r["answers"]["models"]["run"] for r in (a, b)]
    ours, theirs = (json.dumps(r["answers"]).replace(run, "RUN") for r, run in zip((a, b), runs, strict=True))
    mine, other = json.loads(ours), json.loads(theirs)
    assert other["runs/RUN"].pop("sampling")["temperature"] == 0 and mine["runs/RUN"].pop("sampling") == {}
    for document in (mine, other):  # the reasons for float32 differ: one was set to it, the other has the memory
        assert "float32" in document["models"]["models"][0].pop("held")
    assert {k: v for k, v in other.items() if "/terms?" not in k} == mine
    assert a["tensors"] == b["tensors"] and len(a["tensors"]) == len(trace)
    assert set(a) == set(b) and a["terms"]["told"] == 0 < b["terms"]["told"] < b["terms"]["cells"] == a["terms"]["cells"]


def test_terms_sum_to_the_cell(browser: Browser, trace: Trace, file: Path) -> None:
    """The terms of one cell of several kinds of tensors, read off the page, sum to it."""
    with open_offline_tab(browser, file) as tab:
        for path in KINDS:
            check(tab, file, trace.all(path)[0])
        assert tab.page.evaluate("document.querySelectorAll('*').length") < 5000


def test_terms_of_bfloat16(browser: Browser, specimen: Model, tmp_path: Path) -> None:
    """The terms sum to their cell in bfloat16 too, as the specimen is stored."""
    trace = pellucid.trace(specimen, PROMPT, terms=True)
    trace.save_html(tmp_path / "trace.html", cells=600)
    with open_offline_tab(browser, tmp_path / "trace.html") as tab:
        for path in ("layers.0.attn.q", "layers.1.ffn.neurons", "logits"):
            check(tab, tmp_path / "trace.html", trace[path])


def test_a_cell_under_the_mouse_has_its_sum(browser: Browser, trace: Trace, file: Path) -> None:
    """A cell of the last token's row under the mouse has Python's value and Python's sum."""
    seen, pointed = trace.all("layers.1.attn.pattern")[0], set()
    with open_offline_tab(browser, file) as tab:
        open_file(tab, file, "aside .frame[data-cells]:not([data-cells='0'])", tensor=seen.path, head=1)
        box = tab.page.locator("aside .frame").bounding_box()
        assert box is not None and seen.terms is not None
        for share in (0.1, 0.5, 0.9):
            tab.page.mouse.move(box["x"] + 92 + share * (box["width"] - 92), box["y"] + box["height"] - 6)
            tab.page.wait_for_selector("[data-sum]")
            index = tuple(map(int, (tab.page.get_attribute("#reading", "data-cell") or "").split(",")))
            assert float(torch.tensor(float(read(tab)))) == float(seen.value[index])
            assert tab.formula_sum() == seen.terms(index).total()
            pointed.add(index)
            tab.page.mouse.move(box["x"] + 10, box["y"] - 300)
            tab.page.reload()
            tab.page.wait_for_selector("aside .frame[data-cells]:not([data-cells='0'])")
    assert pointed == {(0, 1, 4, 0), (0, 1, 4, 2), (0, 1, 4, 4)}


def test_cells_without_terms_say_so(browser: Browser, specimen: Model, trace: Trace, file: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain.html"
    pellucid.trace(specimen, PROMPT).save_html(plain)
    terms = recorded(file.read_text(encoding="utf-8"))["terms"]
    cells = sum(s.value.numel() for s in trace)
    assert (terms["told"], terms["cells"]) == (4000, cells)
    beyond = filled(phrases("en")["page.beyond"], told=4000, cells=cells)
    for path, says in ((plain, phrases("en")["page.untold"]), (file, beyond)):
        with open_offline_tab(browser, path) as tab:
            open_file(tab, path, '#reading[data-cell="0,0,0"]:not([data-value=""])', tensor="embed", cell="0,0,0")
            expect(tab.page.locator("aside > p.soft")).to_have_text(says)


def test_all_views_of_a_trace(browser: Browser, trace: Trace, file: Path) -> None:
    """Tokens, cards, candidates, the next token, a head's weights, the cache and later steps are the trace's."""
    with open_offline_tab(browser, file) as tab:
        open_file(tab, file, "[data-picked]", view="life")
        assert [int(x) for x in tab.page.locator(".token .id").all_inner_texts()] == trace.ids + trace.new
        assert tab.page.input_value("#prompt") == PROMPT
        assert tab.page.get_attribute("[data-picked]", "data-picked") == str(trace.new[0])
        assert tab.page.locator("nav a").all_inner_texts() == ["Map", "Life", "Attention", "Next token", "Cache"]
        open_file(tab, file, "[data-weight]", view="attention", block="layers.2", head=1, position=3)
        weights = tab.page.eval_on_selector_all("[data-weight]", "cells => cells.map(c => Number(c.dataset.weight))")
        assert torch.equal(torch.tensor(weights), trace.all("layers.2.attn.pattern")[0].value[0, 1, 3])
        open_file(tab, file, "tr[data-id]", view="next")
        best = int(trace.all("logits")[0].value[0, -1].argmax())
        assert tab.page.get_attribute("tr[data-id] >> nth=0", "data-id") == str(best)
        open_file(tab, file, "tr[data-step='1'] [data-total]", view="cache")
        cell = '#reading[data-cell="0,0,7"]:not([data-value=""])'
        open_file(tab, file, cell, step=1, tensor="layers.3.out", cell="0,0,7")
        assert float(torch.tensor(float(read(tab)))) == float(trace.all("layers.3.out")[1].value[0, 0, 7])


def record(path: str, value: Tensor, dims: str = "T D", op: str = "linear") -> Seen:
    """Return a record made by hand."""
    s = Seen(path, dims, tuple(value.shape), value.dtype, value, 0, None, 0, None)
    s.op, s.inputs, s.weights = op, (path,), (f"{path}.weight",)
    return s


def test_all_dtypes(browser: Browser, tmp_path: Path) -> None:
    """The cells of every dtype, special values too, have Python's numbers under the keyboard's cursor."""
    draw = torch.Generator().manual_seed(5)
    special = [0.0, -0.0, 1.0, float("inf"), float("-inf"), float("nan")]
    values: list[Tensor] = []
    for dtype, least in ((torch.bfloat16, 1e-39), (torch.float16, 6e-8), (torch.float32, 1e-45), (torch.float64, 5e-324)):
        values.append(torch.tensor([*special, least, *torch.randn(5, generator=draw, dtype=torch.float64).tolist()], dtype=dtype))
    values += [torch.tensor([0, -1, 2**53 - 1]), torch.tensor([3, -4], dtype=torch.int32), torch.tensor([True, False])]
    words, path = {"∞": "inf", "-∞": "-inf", "NaN": "nan"}, tmp_path / "t.html"
    Trace("m", seen=[record(f"t{i}", v, "V") for i, v in enumerate(values)]).save_html(path)
    with open_offline_tab(browser, path) as tab:
        for i, value in enumerate(values):
            open_file(tab, path, "aside .frame[data-cells]:not([data-cells='0'])", tensor=f"t{i}")
            tab.page.focus("aside .frame")
            read_off = []
            for k in range(value.numel()):
                tab.page.keyboard.press("Home" if k == 0 else "ArrowRight")
                tab.page.wait_for_selector(f'#reading[data-cell="{k}"]:not([data-value=""])')
                read_off.append(read(tab))
            if value.is_floating_point():
                back = torch.tensor([float(words.get(x, x)) for x in read_off], dtype=torch.float64).to(value.dtype)
                assert torch.equal(back.nan_to_num(7.0), value.nan_to_num(7.0)) and (back.isnan() == value.isnan()).all()
                assert [x.startswith("-") for x, v in zip(read_off, value.tolist(), strict=True) if v == 0] == [
                    math.copysign(1, v) < 0 for v in value.tolist() if v == 0
                ]
            else:
                assert [int(x) for x in read_off] == value.long().tolist()


def visible(text: str) -> str:
    """Return a text as the page shows it."""
    return re.sub("[\u2028\u202e\u200b\x07]", lambda c: c[0].encode("unicode_escape").decode(), text)


def hostile() -> dict[str, Any]:
    """Return the data of a trace whose every text is a payload, its pieces too."""
    seen = [record(p, torch.ones(2, 2), op=p) for p in PAYLOADS]
    run, place = subject(Trace(PAYLOADS[1], "".join(PAYLOADS), [1, 2], [3], seen))
    data = recording(run, place, written_page.LIMITS)
    data["answers"][f"runs/{run.id}"] |= {"pieces": PAYLOADS[:2], "new_pieces": PAYLOADS[2:3], "torn": PAYLOADS, "text": PAYLOADS[0]}
    return data


def test_text_stays_text(browser: Browser, tmp_path: Path) -> None:
    """Payloads as model name, prompt, tokens, paths, ops and formulas are shown, and none runs."""
    path = tmp_path / "p.html"
    path.write_text(pages.written(hostile()), encoding="utf-8")
    with open_offline_tab(browser, path) as tab:
        for payload in PAYLOADS:
            open_file(tab, path, '#reading[data-cell="1,1"]:not([data-value=""])', tensor=payload, cell="1,1")
            assert tab.page.text_content("aside h2") == visible(payload) and read(tab) == "1"
        assert tab.page.input_value("#prompt") == "".join(PAYLOADS)
        assert tab.page.locator(".token bdi").all_inner_texts() == [visible(p) for p in PAYLOADS[:3]]
        tab.page.wait_for_timeout(200)
        assert tab.page.evaluate("window.__pwned") is None
        assert tab.page.evaluate("document.querySelectorAll('img, iframe, object, embed').length") == 0
        assert tab.page.evaluate("document.scripts.length") == 2


def test_mutants_are_seen(browser: Browser, trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed value, changed terms, a text that ends its element and an added script are seen."""
    seen = trace.all("layers.0.attn.q")[0]
    run, place = subject(trace)
    sound = recording(run, place, written_page.LIMITS.__class__(10_000_000, 50_000, 300))
    column = Columns.column
    with monkeypatch.context() as m:
        m.setattr(Columns, "column", lambda self, f: column(self, f * 1.001))
        bent = recording(run, place, written_page.LIMITS.__class__(10_000_000, 50_000, 300))
    n = trace.seen.index(seen)
    tampered = json.loads(json.dumps(sound))
    raw = bytearray(seen.value.numpy().tobytes())
    raw[4 * int(torch.tensor(seen.value.shape).prod() - seen.value.shape[-1] * seen.value.shape[-2])] ^= 1
    tampered["tensors"][str(n)]["bytes"] = pages.packed(bytes(raw))
    index = greatest(seen)
    cell = ",".join(map(str, index))
    for data, fails in ((sound, ""), (tampered, "hash"), (bent, "terms")):
        path = tmp_path / f"{fails or 'sound'}.html"
        path.write_text(pages.written(data), encoding="utf-8")
        with open_offline_tab(browser, path) as tab:
            open_file(tab, path, "[data-received]:not([data-received=''])", tensor=seen.path, cell=cell)
            hashed = tab.page.locator("[data-received]")
            assert (hashed.get_attribute("data-received") == hashed.get_attribute("data-source")) is (fails != "hash")
            tab.page.wait_for_selector("[data-sum]")
            tab.page.click("aside details summary")
            tab.page.uncheck("aside .sort input")
            first = tab.page.eval_on_selector("aside details tbody tr", "row => Array.from(row.cells, c => c.textContent)")
            assert seen.terms is not None
            ours = torch.stack([f[0] for f in seen.terms(index).factors.values()]).float()
            assert torch.equal(torch.tensor([float(x) for x in first[1:-2]]), ours) is (fails != "terms")
    added = tmp_path / "added.html"
    added.write_text("<script>window.__pwned=1</script></body>".join(pages.written(sound).rsplit("</body>", 1)), encoding="utf-8")
    with open_tab(browser, f"{added.as_uri()}#", offline=True) as tab:
        open_file(tab, added, "main nav")
        assert tab.page.evaluate("window.__pwned") is None
        assert tab.faults and all("Content Security Policy" in f for f in tab.faults)
        tab.problems.clear()
    broken = tmp_path / "broken.html"
    monkeypatch.setattr(pages, "inert", json.dumps)
    broken.write_text(pages.written(hostile()), encoding="utf-8")
    with open_tab(browser, f"{broken.as_uri()}#", offline=True) as tab:
        tab.page.goto(broken.as_uri())
        tab.page.wait_for_timeout(300)
        assert tab.faults
        tab.problems.clear()
