"""A model, a trace and a tensor in a notebook's cell: the page in a frame that reaches nothing, within a limit, with a text beside it."""

import html
import json
import re
import subprocess
import sys
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Error, Frame

import pellucid
from browser import READY, open_file, open_offline_tab
from pellucid import html as saved_page
from pellucid.api.model import Model, load, make, specimens
from pellucid.documents.cell_columns import Columns, distance
from pellucid.errors import TraceError
from pellucid.html import frame
from pellucid.html.recording import RecordingLimits, recording
from pellucid.html.shown import subject
from pellucid.messages import phrases
from pellucid.notebook import Shown
from pellucid.tracing import Trace, load_trace
from pellucid.watching.records import Seen
from served import Served, judge

PAGE = sum(p.stat().st_size for p in (Path(pellucid.__file__).parent / "web").iterdir())
PROMPT = "The capital of France is"
EXAMPLES = {"pellucid/capitals-bert": "The capital of France is ___.", "pellucid/capitals-t5": "The capital of France is Paris."}


@pytest.fixture(scope="module")
def trace(specimen: Model) -> Trace:
    return pellucid.trace(specimen, PROMPT, terms=True)


def carried(thing: Any, limits: RecordingLimits = saved_page.LIMITS) -> dict[str, Any]:
    """Return the data in the page of a model, a trace or a tensor."""
    run, place = subject(thing)
    data = json.loads(json.dumps(recording(run, place, limits)))
    return {**data, "run": data["answers"][f"runs/{run.id}"], "id": run.id}


def page(cell: str) -> str:
    """Return the page within a cell."""
    match = re.search(r"srcdoc='([^']*)'", cell)
    assert match is not None
    return html.unescape(match[1])


@pytest.mark.parametrize("name", specimens())
@pytest.mark.quick(4)
def test_every_kind_has_a_page(name: str) -> None:
    """Its documents are those of the server's schema, as a trace and as a model without values."""
    model = load(name)
    trace = pellucid.trace(model, EXAMPLES.get(name, PROMPT))
    full, bare = carried(trace), carried(model)
    for data, tensors in ((full, len(trace)), (bare, 0)):
        judge(data["answers"]["models"], "models")
        run = judge(data["run"], "run")
        assert (run["kind"], run["values"]) == (data["answers"]["models"]["models"][0]["kind"], tensors > 0)
        assert len(data["tensors"]) == tensors and "left" not in data
        assert [t["path"] for t in run["tensors"]] and all(t["parameters"] is not None for t in run["tensors"])
    assert [a["picked"]["id"] for a in full["run"]["steps"][0]["answers"]] == trace.new
    assert sum("/sample " in key for key in full["answers"]) == len(trace.new)
    weights = judge(bare["answers"][f"weights?model={urllib.parse.quote(name, safe='')}"], "weights")["weights"]
    assert sum(w["count"] for w in weights if w["parameter"]) == model.num_parameters()
    outside = model._repr_html_().split("srcdoc=")  # the page in the frame speaks of frames too
    assert bare["place"].startswith("view=budget") and trace.paths() != [] and outside[0].count("<iframe ") == 1


def test_a_models_bill_is_the_servers(api: Served) -> None:
    """The bill and the weights of a model in memory, counted from its config, are those that the server counts by its name."""
    answers = carried(load("pellucid/capitals", dtype="float32"))["answers"]
    (key,) = (k for k in answers if k.startswith("count?"))
    assert key == "count?model=pellucid%2Fcapitals&batch=1&dtype=float32&cache=float32"
    assert answers[key] == api.client.get(f"/api/{key}").json()
    assert answers["weights?model=pellucid%2Fcapitals"] == api.get("/api/weights", "weights", model="pellucid/capitals")


def test_a_model_without_a_tokenizer_or_weights(specimen: Model) -> None:
    """Five ids stand for a text; a model on meta, one from a bare config and a quantised one have a page too."""
    bare = make({"model_type": "gpt2", "vocab_size": 32, "n_embd": 8, "n_head": 2, "n_layer": 1, "n_positions": 4}, "a~b *c", "meta")
    data = carried(bare)
    assert data["run"]["ids"] == [0] * 4 and not data["run"]["values"]
    assert "weights?model=a%7Eb+*c" in data["answers"]
    quantised = load("pellucid/capitals", quant="int8")
    assert carried(quantised)["place"] == "view=budget&budget=dtype%3Aint8"
    assert carried(load("pellucid/capitals", device="meta"))["run"]["ids"] == specimen.ids(PROMPT)


def test_what_is_recorded_otherwise(specimen: Model, trace: Trace, tmp_path: Path) -> None:
    """A trace read from a folder has the same page; a watch, a tensor of a later step and a tensor cut by `keep` have pages too."""
    trace.save(tmp_path / "t")
    read = carried(load_trace(tmp_path / "t"))
    in_memory = carried(trace)
    assert read["run"]["kind"] is None and read["tensors"] == in_memory["tensors"]
    assert all(read["run"][k] == in_memory["run"][k] for k in ("pieces", "new_pieces", "steps"))
    with pellucid.watch(specimen, keep=lambda x: x[:, -1]) as seen:
        specimen(torch.tensor([trace.ids]))
    cut = carried(seen)
    assert cut["tensors"] == {} and not cut["run"]["values"] and cut["run"]["tensors"][0]["parameters"] is not None
    with pellucid.watch(specimen, only="logits") as seen:
        specimen(torch.tensor([trace.ids]))
    assert list(carried(seen)["tensors"]) == ["0"]
    later = pellucid.trace(specimen, PROMPT, 3).all("layers.1.out")[2]
    one = carried(later)
    assert (one["place"], one["run"]["steps"][0]["count"], list(one["tensors"])) == ("tensor=layers.1.out", 1, ["0"])
    assert (later.step, one["run"]["tensors"][0]["step"]) == (2, 0)
    torn = Trace("m", ids=[1], seen=[s for s in pellucid.trace(specimen, PROMPT, 3) if s.step != 1])
    assert [s["count"] for s in carried(torn)["run"]["steps"]] == [62, 0, 62]
    assert carried(Trace("m"))["run"]["tensors"] == []


def test_what_does_not_fit_is_left_out_and_counted(browser: Browser, trace: Trace, specimen: Model, tmp_path: Path) -> None:
    """The largest tensors are left out first, then the last steps. The page shows their number, and sends no request for them."""
    sizes = {str(n): s.value.nbytes for n, s in enumerate(trace)}
    data = carried(trace, RecordingLimits(200_000, 0, 0))
    assert 0 < len(data["tensors"]) < len(trace)
    assert max(sizes[n] for n in data["tensors"]) <= min(size for n, size in sizes.items() if n not in data["tensors"])
    assert data["left"] == {"tensors": len(trace) - len(data["tensors"]), "of": len(trace), "steps": 0, "limit": 200_000}
    long = carried(pellucid.trace(specimen, PROMPT, 20, lambda logits: 5), RecordingLimits(1_500_000, 0, 0))
    steps = len(long["run"]["steps"])
    assert 1 < steps < 20 and long["left"]["steps"] == 20 - steps
    for limit in (10, 200_000, 400_000, 2_000_000):
        assert len(saved_page.html(trace, limit)) < limit + PAGE + 200_000  # the documents of the first step
    file, absent = tmp_path / "small.html", phrases("en")["page.saved.absent"]
    trace.save_html(file, most=200_000)
    with open_offline_tab(browser, file) as tab:
        open_file(tab, file, f"[data-left='{data['left']['tensors']}']", tensor="logits")
        tab.page.wait_for_selector("aside .pooled")
        assert tab.page.inner_text("aside .pooled") == absent
        tab.page.click('[data-path="norm"]')
        tab.page.wait_for_timeout(200)


def test_a_cell_stays_small(specimen: Model) -> None:
    """The cell of a trace with 400 MB of values, or with 30,000 tensors, stays small."""
    x = torch.zeros(1).expand(100, 1_000_000)
    large = Seen("x", "T D", (100, 1_000_000), torch.float32, x, 0, None, 0, None)
    text = Trace("m", seen=[large])._repr_html_()
    assert len(text) < PAGE * 1.2 and '"left"' in text
    tiny = torch.zeros(1, 1)
    many = [Seen(f"t{i}", "T D", (1, 1), torch.float32, tiny, i // 100, None, 0, None) for i in range(30_000)]
    assert len(Trace("m", seen=many)._repr_html_()) < frame.LIMITS.bytes * 1.2 + 400_000


def framed(browser: Browser, cell: str, folder: Path) -> tuple[Frame, list[str]]:
    """Open a notebook with a cell. Returns the page's frame, and a list of its messages, errors and requests."""
    faults: list[str] = []
    view = browser.new_context(viewport={"width": 1100, "height": 900}, offline=True).new_page()
    view.on("console", lambda m: faults.append(m.text) if "GL Driver Message" not in m.text else None)
    view.on("pageerror", lambda e: faults.append(str(e)))
    own = ("notebook.html", "blob:")  # the script of a worker comes from the page's own memory
    view.on("request", lambda r: faults.append(r.url) if not r.url.endswith(own[0]) and not r.url.startswith(own[1]) else None)
    file = folder / "notebook.html"
    file.write_text(f"<!doctype html><meta charset=utf-8><body><p id=cell>In [1]</p>{cell}<script>secret = 1</script>", encoding="utf-8")
    view.goto(file.as_uri())
    (frame,) = view.frames[1:]
    frame.wait_for_function(READY)
    return frame, faults


def test_a_notebook_shows_a_trace(browser: Browser, trace: Trace, tmp_path: Path) -> None:
    """Values are Python's; a click opens a tile though the frame has no address; the frame reaches neither notebook nor network."""
    frame, faults = framed(browser, trace._repr_html_(), tmp_path)
    frame.click("nav a >> nth=1")
    assert frame.get_attribute("[data-picked]", "data-picked") == str(trace.new[0])
    frame.click('[data-path="layers.0.attn.scores"]')
    frame.wait_for_selector("aside .frame[data-cells]:not([data-cells='0'])")
    frame.focus("aside .frame")
    frame.page.keyboard.press("ArrowRight")
    frame.wait_for_selector("#reading:not([data-value=''])")
    index = tuple(map(int, (frame.get_attribute("#reading", "data-cell") or "").split(",")))
    value = trace["layers.0.attn.scores"].value[index]
    assert torch.tensor(float(frame.get_attribute("#reading", "data-value") or "nan")).to(value.dtype) == value
    frame.click("nav a >> nth=3")
    frame.wait_for_selector("tr[data-id]")
    with pytest.raises(Error, match="cross-origin"):
        frame.evaluate("parent.secret")
    assert not frame.page.locator(".pellucid > pre").is_visible()
    assert faults == []
    frame.page.context.close()


def test_a_notebook_shows_a_tensor_and_a_model(browser: Browser, trace: Trace, specimen: Model, tmp_path: Path) -> None:
    """A tensor opens at its tile, a model at its counts, which are `count`'s; its Life has shapes."""
    frame, faults = framed(browser, trace["layers.1.attn.pattern"]._repr_html_(), tmp_path)
    frame.wait_for_selector("aside[aria-label='layers.1.attn.pattern'] [data-received]:not([data-received=''])")
    assert frame.locator("form").count() == 0 and faults == []
    frame.page.context.close()
    frame, faults = framed(browser, specimen._repr_html_(), tmp_path)
    frame.wait_for_selector("td[data-number='parameters.total'][data-value]")
    bill = pellucid.count("pellucid/capitals", dtype="float32", cache="float32")
    for number in ("parameters.total", "bytes.total", "cache.bytes_per_token", "flops.prefill", "flops.decode"):
        assert frame.get_attribute(f"td[data-number='{number}']", "data-value") == str(int(bill[number])), number
    frame.click("nav a >> nth=1")
    frame.wait_for_selector('[data-path="layers.0.attn.q"]')
    assert "H4" in frame.inner_text('[data-path="layers.0.attn.q"] .axes')
    assert faults == []
    frame.page.context.close()


def test_viewers_that_drop_frames_show_a_text(trace: Trace, specimen: Model) -> None:
    """Without frames and styles a cell is a text: one line that names it, and a line a tensor."""
    assert repr(trace) == f"Trace('pellucid/capitals', '{PROMPT}', 5 ids, 1 new, 62 tensors)"
    things: Mapping[str, Shown] = {repr(trace): trace, "Seen('embed')": trace["embed"], repr(specimen): specimen}
    for title, thing in things.items():
        cell = thing._repr_html_()
        left = html.unescape(re.sub(r"<style>.*?</style>|<iframe .*</iframe>|</?(div|pre)[^>]*>", "", cell, flags=re.S))
        assert left.splitlines()[0] == title
        assert re.search(r"^embed +B T D +1×5×128 +float32  W_embed\[id\]$", left, re.M)
        assert len(left.splitlines()) <= frame.LINES + 2
        assert "<script" not in re.sub(r"srcdoc='[^']*'", "", cell)
        assert page(cell).startswith("<!doctype html>") and page(cell).count('http-equiv="Content-Security-Policy"') >= 1
    evil = Trace("</pre><script>x</script>'", "'><img>", seen=[])
    assert "<img" not in evil._repr_html_().split("srcdoc=")[0] and "<script" not in evil._repr_html_().split("srcdoc=")[0]


def test_budget_of_terms_is_kept(trace: Trace) -> None:
    """The last token's cells come first, every tensor of it has some, and no more numbers or cells are carried than allowed."""
    records = dict(enumerate(trace))
    columns = Columns(20_000, 500)
    filled = columns.fill(records)
    assert columns.carried <= 500
    assert sum(columns.lengths) <= 20_000 + 2 * 1025  # the last cell may begin within the budget and end beyond it
    assert sorted(filled) == list(records)
    for n, groups in filled.items():
        spots = [row[0] for group in groups.values() for row in group.rows]
        assert spots and set(distance(records[n])[spots].tolist()) == {0}


def test_only_the_owner_may_read_the_file(trace: Trace, tmp_path: Path) -> None:
    trace.save_html(tmp_path / "trace.html", cells=0)
    assert (tmp_path / "trace.html").stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["trace.html"]
    with pytest.raises(TraceError) as caught:
        Trace("m").save_html(tmp_path / "no" / "folder.html")
    assert caught.value.key == "file.write"


def test_a_run_loads_nothing_of_the_page(tmp_path: Path) -> None:
    """A run loads neither the page nor a server, and a page no server."""
    print_modules = "print(*(m for m in sys.modules if m.split('.')[0] in ('starlette', 'uvicorn') or m == 'pellucid.html'))"
    run = "trace = pellucid.trace(pellucid.load('pellucid/capitals'), 'x')"
    save = f"trace.save_html({str(tmp_path / 'x.html')!r})"
    work = "\n".join(["import pellucid", print_modules, run, print_modules, save, print_modules])
    code = f"import sys\nsys.path[:0] = {sys.path!r}\n{work}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["", "", "pellucid.html"]
