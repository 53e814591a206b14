"""Values reach a browser: a trace's page in a real Chromium, read with the mouse and the keyboard, and compared with Python's numbers."""

import base64
import json
import math
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page, sync_playwright
from torch import Tensor

from pellucid.draw import html
from pellucid.draw.number import number
from pellucid.errors import TraceError
from pellucid.life import trace
from pellucid.model import Model, load
from pellucid.tracing import Trace
from pellucid.watching import Seen
from pellucid.words import phrases

FLAGS = ["--no-sandbox", "--disable-gpu", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--disable-dev-shm-usage"]
KINDS = ["embed", "layers.0.attn_norm", "layers.0.attn.q", "layers.1.attn.scores", "layers.1.attn.pattern", "layers.0.attn.z"]
KINDS += ["layers.0.mid", "layers.1.ffn.neurons", "layers.1.ffn", "logits"]
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2**-7}  # of a sum, beside the sum of magnitudes
PAYLOADS = [
    "<img src=x onerror=window.__pwned=1>",
    "</script><script>window.__pwned=1</script>",
    "--></style><svg onload=window.__pwned=1>",
    "javascript:window.__pwned=1",
    '"><iframe srcdoc="<script>parent.__pwned=1</script>">',
    "{{script}} {{7*7}} ${window.__pwned=1} `${1}`",
    "&lt;b&gt; &amp; \u2028 \\u003cscript\\u003e",
    "'-window.__pwned=1-'",
    "a\u202egnp.exe\u200b\x07",
]


@dataclass
class Visit:
    """A page that is open, and what it did that it should not."""

    page: Page
    faults: list[str] = field(default_factory=list)

    def choose(self, path: str) -> None:
        """Open the tensor of this path."""
        self.page.get_by_role("button", name=path, exact=True).first.click()

    def hover(self, row: int, col: int) -> None:
        """Put the mouse on a cell, scrolled into sight."""
        wide, high = self.page.evaluate("[state.wide, state.high]")
        self.page.evaluate(f"document.getElementById('map').scrollTo({max(0, col * wide - 60)}, {max(0, row * high - 60)})")
        left, top = self.page.evaluate("(() => { const m = document.getElementById('map'); return [m.scrollLeft, m.scrollTop]; })()")
        box = self.page.locator("#map").bounding_box()
        assert box is not None
        self.page.mouse.move(box["x"] + 1 + (col + 0.5) * wide - left, box["y"] + 1 + (row + 0.5) * high - top)

    def value(self) -> str:
        """The number that the page gives for the cell under the cursor."""
        return self.page.inner_text("#value").split(" = ", 1)[1].split()[0]

    def terms(self) -> tuple[list[list[float]], float]:
        """The rows of the formula, each its factors and their product, and the sum that stands below."""
        rows = self.page.eval_on_selector_all("#terms tbody tr", "rows => rows.map(r => Array.from(r.cells, c => c.textContent))")
        total = self.page.inner_text('#terms tr[data-line="page.sum"] td:last-child')
        return [[float(x) for x in row[1:]] for row in rows], float(total)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium; a machine without one cannot judge the page, so that is a failure."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert found is not None, "no Chromium on this machine: install it (Debian: apt-get install chromium fonts-noto-cjk)"
    with sync_playwright() as p:
        chromium = p.chromium.launch(executable_path=found, args=FLAGS)
        yield chromium
        chromium.close()


@contextmanager
def opened(browser: Browser, text: str, folder: Path) -> Iterator[Visit]:
    """The page of this text, from a file; whatever it asks of a network, complains about or throws is a fault."""
    file = folder / "page.html"
    file.write_text(text, encoding="utf-8")
    context = browser.new_context(viewport={"width": 1400, "height": 1000}, color_scheme="light")
    visit = Visit(context.new_page())

    def answer(route: Any) -> None:
        if route.request.url.startswith("file:"):
            route.continue_()
        else:
            visit.faults.append(route.request.url)
            route.abort()

    context.route("**/*", answer)
    visit.page.on("console", lambda m: visit.faults.append(m.text))
    visit.page.on("pageerror", lambda e: visit.faults.append(str(e)))
    visit.page.goto(file.as_uri())
    yield visit
    context.close()


@pytest.fixture(scope="module")
def life(specimen: Model) -> Trace:
    """The prompt's life in float32, with the summands of its cells."""
    return trace(load(specimen.name, dtype="float32"), "The capital of France is", terms=True)


@pytest.fixture(scope="module")
def pieces(specimen: Model, life: Trace) -> list[str]:
    return [p.text for p in specimen.tokenizer.pieces(life.ids + life.new)]


def last_cell(seen: Seen) -> tuple[tuple[int, ...], int, int]:
    """The last token's greatest cell in the picture that the page opens with: its index, row and column."""
    axes = seen.dims.split()
    at = [n - 1 if a == "T" else 0 for a, n in zip(axes, seen.shape, strict=True)]
    row = list(range(seen.shape[-2])) if axes[-2] != "T" else [seen.shape[-2] - 1]
    sheet = seen.value[tuple(at[:-2])][row]
    r, c = (int(i) for i in torch.unravel_index(sheet.argmax(), sheet.shape))
    return (*at[:-2], row[r], c), row[r], c


def check(visit: Visit, record: Seen) -> None:
    """Hover one cell of a tensor: the value on the page is Python's to the last bit, and the terms on the page sum to it."""
    index, row, col = last_cell(record)
    visit.choose(record.path)
    visit.hover(row, col)
    assert f"[{', '.join(map(str, index))}]" in visit.page.inner_text("#value")
    value = record.value[index]
    assert torch.equal(torch.tensor(float(visit.value()), dtype=record.dtype), value), (visit.value(), value)
    assert record.terms is not None
    told = record.terms(index)
    rows, total = visit.terms()
    assert [row[:-1] for row in rows] == torch.stack(list(told.factors.values()), 1).tolist()
    products = [math.prod(row[:-1]) for row in rows]
    assert [row[-1] for row in rows] == pytest.approx(products, rel=1e-15, abs=0)
    room = sum(map(abs, products))
    assert abs(math.fsum(products) - total) <= 1e-13 * room
    assert abs(math.fsum(products) - float(value)) <= ROUNDING[record.dtype] * room
    assert visit.faults == []


def test_terms_sum_to_the_cell(browser: Browser, life: Trace, pieces: list[str], tmp_path: Path) -> None:
    """Proof: one cell each of several kinds of tensors, hovered, read off the page, summed."""
    with opened(browser, html.trace_html(life, pieces, cells=600), tmp_path) as visit:
        for path in KINDS:
            check(visit, life[path])
        assert str(visit.page.text_content("#value")).endswith(f"= {visit.value()}   {pieces[len(life.ids) - 1]}")
        assert visit.page.locator("#tensors tr").count() == len(life)
        assert visit.page.evaluate("document.querySelectorAll('*').length") < 5000


def test_terms_of_bfloat16(browser: Browser, specimen: Model, tmp_path: Path) -> None:
    """The specimen as it is stored: a cell is its terms' sum, rounded."""
    life = trace(specimen, "The capital of France is", terms=True)
    with opened(browser, html.trace_html(life, cells=600), tmp_path) as visit:
        for path in ("layers.0.attn.q", "layers.1.ffn.neurons", "logits"):
            check(visit, life[path])
            _, total = visit.terms()
            rounded = visit.page.inner_text('#terms tr[data-line="page.rounded"] td:last-child')
            assert float(rounded) == float(torch.tensor(total).to(life[path].dtype))


def test_every_tensor_is_listed_and_drawn(browser: Browser, life: Trace, tmp_path: Path) -> None:
    """Path, axes, dtype, op and range of each; the pixels of a tile have the colours of its values."""
    with opened(browser, html.trace_html(life, cells=50), tmp_path) as visit:
        rows = visit.page.eval_on_selector_all("#tensors tr", "rows => rows.map(r => Array.from(r.cells, c => c.textContent))")
        for row, s in zip(rows, life, strict=True):
            sizes = ", ".join(f"{a} {n}" for a, n in zip(s.dims.split(), s.shape, strict=True))
            assert row[:4] == [s.path, sizes, str(s.dtype)[6:], s.op]
            shown = [number(float(f(s.value.double()))) for f in (torch.min, torch.mean, torch.max)]
            assert row[4:] == shown
        q = life["layers.0.attn.q"]
        visit.choose(q.path)
        wide, high = visit.page.evaluate("[state.wide, state.high]")
        for h, k in ((0, 0), (1, 2), (3, 7)):
            at = f"{int((k + 0.5) * wide)}, {int((h + 0.5) * high)}, 1, 1"
            pixel = visit.page.evaluate(f"Array.from(document.getElementById('canvas').getContext('2d').getImageData({at}).data)")
            visit.faults.clear()  # Chromium's advice on reading a canvas back
            share = float(q.value[0, -1, h, k] / q.value.abs().max())
            end = (178, 24, 43) if share > 0 else (33, 102, 172)
            assert pixel[:3] == pytest.approx([w + (e - w) * abs(share) for w, e in zip((247,) * 3, end, strict=True)], abs=1)
        assert visit.faults == []


def test_keyboard_and_language(browser: Browser, life: Trace, tmp_path: Path) -> None:
    """Arrow keys move the cell, far ones come into sight, the line is live; the page speaks both languages."""
    with opened(browser, html.trace_html(life, cells=50), tmp_path) as visit:
        page, logits = visit.page, life["logits"]
        assert page.get_attribute("#value", "aria-live") == "polite"
        visit.choose("logits")
        page.focus("#map")
        spots = []
        for key in ["ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowUp", "ArrowLeft"]:
            page.keyboard.press(key)
            spots.append(page.inner_text("#value").split(" = ")[0])
        assert spots == [f"logits[0, {r}, {c}]" for r, c in ((0, 0), (1, 0), (1, 1), (1, 2), (0, 2), (0, 1))]
        assert float(visit.value()) == pytest.approx(float(logits.value[0, 0, 1]), rel=1e-7)
        page.keyboard.press("End")
        assert page.evaluate("document.getElementById('map').scrollLeft") > 0
        assert float(visit.value()) == pytest.approx(float(logits.value[0, 0, -1]), rel=1e-7)
        page.keyboard.press("Home")
        assert page.evaluate("document.getElementById('map').scrollLeft") == 0
        page.select_option("#language", "zh")
        assert page.get_attribute("html", "lang") == "zh-Hans"
        assert phrases("zh")["page.hint"] in page.inner_text("#tile")
        page.select_option("#language", "en")
        assert phrases("en")["page.hint"] in page.inner_text("#tile")
        assert visit.faults == []


def test_all_dtypes(browser: Browser, tmp_path: Path) -> None:
    """Every dtype's cells by the keyboard, special values too; a scalar, and a tensor of nothing."""
    draw = torch.Generator().manual_seed(5)
    special = [0.0, -0.0, 1.0, float("inf"), float("-inf"), float("nan")]
    values: list[Tensor] = []
    for dtype, least in ((torch.bfloat16, 1e-39), (torch.float16, 6e-8), (torch.float32, 1e-45), (torch.float64, 5e-324)):
        values.append(torch.cat([torch.tensor([*special, least]), torch.randn(5, generator=draw)]).to(dtype))
    values += [torch.tensor([0, -1, 2**62 + 1]), torch.tensor([3, -4], dtype=torch.int32), torch.tensor([True, False])]
    values += [torch.tensor(2.5), torch.empty(0)]
    dims = ["V"] * 7 + ["", "V"]
    seen = [recorded(f"t{i}", v, d) for i, (v, d) in enumerate(zip(values, dims, strict=True))]
    words = {"∞": "inf", "-∞": "-inf", "true": "1", "false": "0"}
    with opened(browser, html.trace_html(Trace("m", seen=seen)), tmp_path) as visit:
        for i, value in enumerate(values):
            visit.choose(f"t{i}")
            visit.page.focus("#map")
            read = []
            for _ in range(value.numel()):
                visit.page.keyboard.press("ArrowRight")
                read.append(visit.value())
            if value.is_floating_point():
                back = torch.tensor([float(words.get(x, x)) for x in read], dtype=torch.float64).to(value.dtype)
                assert torch.equal(back.nan_to_num(7.0), value.view(-1).nan_to_num(7.0)) and (back.isnan() == value.view(-1).isnan()).all()
                assert [x.startswith("-") for x, v in zip(read, value.view(-1).tolist(), strict=True) if v == 0] == [
                    math.copysign(1, v) < 0 for v in value.view(-1).tolist() if v == 0
                ]
            else:
                assert [int(words.get(x, x)) for x in read] == value.long().tolist()
        assert phrases("en")["page.empty"] in visit.page.inner_text("#hint")
        assert visit.faults == []


def recorded(path: str, value: Tensor, dims: str = "T D", op: str = "linear") -> Seen:
    """A record made by hand."""
    s = Seen(path, dims, tuple(value.shape), value.dtype, value, 0, None, 0, None)
    s.op, s.inputs, s.weights = op, (path,), (f"{path}.weight",)
    return s


def hostile() -> tuple[Trace, list[str]]:
    """A trace whose every text is a payload, and its pieces."""
    seen = [recorded(p, torch.ones(2, 2), op=p) for p in PAYLOADS]
    return Trace(PAYLOADS[0], "".join(PAYLOADS), [1, 2], [3], seen), PAYLOADS[:3]


def test_text_stays_text(browser: Browser, tmp_path: Path) -> None:
    """Payloads as model name, prompt, tokens, paths, ops and formulas are shown, and none runs."""
    run, texts = hostile()

    def shown(text: str) -> str:
        return re.sub("[\u2028\u202e\u200b\x07]", lambda c: f"\\u{{{ord(c[0]):x}}}", text)

    with opened(browser, html.trace_html(run, texts), tmp_path) as visit:
        page = visit.page
        for i, payload in enumerate(PAYLOADS):
            page.locator(f'button[data-number="{i}"]').click()
            visit.hover(1, 1)
            assert page.text_content("#path") == shown(payload)
            assert str(page.text_content("#value")).startswith(shown(payload) + "[1, 1] = 1")
        assert page.text_content("#prompt") == shown("".join(PAYLOADS))
        assert page.eval_on_selector_all(".token", "t => t.map(x => x.textContent)") == texts
        assert page.evaluate("window.__pwned") is None
        assert page.evaluate("document.querySelectorAll('img, svg, iframe, object, embed, a').length") == 0
        assert page.evaluate("document.scripts.length") == 3
        assert visit.faults == []


def looked_at(browser: Browser, text: str, life: Trace, folder: Path, path: str = "layers.0.attn.q") -> None:
    with opened(browser, text, folder) as visit:
        check(visit, life[path])
        assert visit.page.evaluate("window.__pwned") is None


def test_mutants_are_seen(browser: Browser, life: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values or columns that differ from what ran, a page that rounds, scripts and pictures put in: the check sees each."""
    sound = html.trace_html(life, cells=300)
    looked_at(browser, sound, life, tmp_path)
    values = base64.b64decode(re.findall(r'id="values">([^<]*)<', sound)[0])
    bits = life["layers.0.attn.q"].value[last_cell(life["layers.0.attn.q"])[0]].numpy().tobytes()
    assert values.count(bits) >= 1
    tampered = values.replace(bits, bytes([bits[0] ^ 1, *bits[1:]]))  # one bit of one value
    coarse = page_with(sound, "digits < 10", "digits < 5")  # a page that shows four digits
    coarse = page_with(coarse, "return String(x);\n}\n\n// The nearest", "return four(x);\n}\n\n// The nearest")
    column = html.Columns.column
    with monkeypatch.context() as m:
        m.setattr(html.Columns, "column", lambda self, f: column(self, f * 1.001))
        bent = html.trace_html(life, cells=300)
    added = ("<script>window.__pwned = 1</script>", '<img src="http://127.0.0.1:9/x.png">', "<style>body { color: red }</style>")
    pages = [sound.replace(base64.b64encode(values).decode(), base64.b64encode(tampered).decode()), rehashed(coarse), bent]
    for text in [*pages, *(sound.replace("</main>", "</main>" + more) for more in added)]:
        assert text != sound
        with pytest.raises(AssertionError):
            looked_at(browser, text, life, tmp_path)


def test_unescaped_text_would_run(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of `inert`: text that ends the element it stands in breaks the page."""
    run, texts = hostile()
    monkeypatch.setattr(html, "inert", lambda content: json.dumps(content))
    with opened(browser, html.trace_html(run, texts), tmp_path) as visit:
        assert visit.faults


def page_with(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1
    return text.replace(old, new)


def rehashed(text: str) -> str:
    """A changed page whose policy allows its changed script."""
    script = re.findall(r"<script>(.*?)</script>", text, re.S)[-1]
    return re.sub(r"script-src '[^']*'", f"script-src '{html.digest(script)}'", text, count=1)


def test_cells_without_summands_say_so(browser: Browser, specimen: Model, life: Trace, tmp_path: Path) -> None:
    plain = trace(specimen, life.ids)
    with opened(browser, html.trace_html(plain), tmp_path) as visit:
        visit.choose("embed")
        visit.hover(0, 0)
        assert visit.page.inner_text("#formula") == phrases("en")["page.untold"]
    with opened(browser, html.trace_html(life, cells=100), tmp_path) as visit:
        visit.choose("embed")
        visit.hover(0, 0)
        cells = sum(s.value.numel() for s in life)
        assert visit.page.inner_text("#formula") == phrases("en")["page.beyond"].format(told=100, cells=cells)


def test_budget_is_kept(life: Trace) -> None:
    """The last token's cells come first, every tensor of it has some, and no more numbers or cells are carried than allowed."""
    records = list(life)
    columns = html.Columns(20_000, 500)
    filled = dict(columns.fill(records))
    assert columns.told <= 500
    assert sum(columns.lengths) <= 20_000 + 2 * 1025  # the last cell may begin within the budget and end beyond it
    assert sorted(filled) == list(range(len(records)))
    for i, group in filled.items():
        spots = [row[0] for rows in group.values() for row in rows]
        assert set(html.distance(records[i])[spots].tolist()) == {0}


def test_file_is_the_owners(life: Trace, tmp_path: Path) -> None:
    html.save_html(life, tmp_path / "life.html", cells=10)
    assert (tmp_path / "life.html").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "life.html").read_text(encoding="utf-8") == html.trace_html(life, cells=10)
    assert [p.name for p in tmp_path.iterdir()] == ["life.html"]


def test_what_no_page_can_show_is_refused(life: Trace, tmp_path: Path) -> None:
    with pytest.raises(TraceError) as caught:
        html.trace_html(life, most_bytes=1000)
    assert caught.value.key == "page.large"
    with pytest.raises(TraceError) as caught:
        html.trace_html(Trace("m", seen=[recorded("x", torch.ones(2, 2, device="meta"))]))
    assert caught.value.key == "page.value"
    with pytest.raises(TraceError):
        html.save_html(Trace("m"), tmp_path / "no" / "folder.html")


FORBIDDEN = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|fetch\(|XMLHttp|WebSocket|import\(|")
FORBIDDEN = re.compile(FORBIDDEN.pattern + r"Math\.random|https?:|\son\w+=|setTimeout\(\"|localStorage|postMessage")


@pytest.mark.parametrize("added", ["", "e.innerHTML = x", "fetch('/x')", "Math.random()", "https://example.org", "<b onclick=f()>"])
def test_sources_use_text_alone(added: str) -> None:
    """No way for text to become markup or code, no network, nothing drawn by chance."""
    sources = "".join((html.HERE / name).read_text(encoding="utf-8") for name in ("page.html", "page.css", "page.js")) + added
    assert bool(FORBIDDEN.search(sources)) == bool(added)
