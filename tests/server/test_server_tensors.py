"""Tensors for the page: parts, pooled and measured; weights; counts; models without weights and traces without a model."""

import hashlib
import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pellucid
from documented import accept
from pellucid import catalog
from pellucid.api.model import SPECIMENS, specimens
from pellucid.documents import count
from pellucid.errors import TraceError, UseError
from pellucid.runs import slices
from pellucid.runs.limits import LIMITS, Limits
from pellucid.runs.stats import STRIP, stats_of
from pellucid.server.session import Session
from pellucid.tracing import Trace
from pellucid.watching.records import Seen
from served import Served, judge, raw, served
from tiny import swapped

FULL = bool(os.environ.get("PELLUCID_FULL"))
CAPITAL = "The capital of France is"


@pytest.fixture(scope="module")
def models() -> dict[str, pellucid.Model]:
    return {name: pellucid.load(name, dtype="float32") for name in specimens()}


def test_measures_are_the_tensors(api: Served) -> None:
    for t in api.run("pellucid/capitals-deepseek", CAPITAL)["tensors"]:
        run = api.session.runs.by_id[next(reversed(api.session.runs.by_id))]
        wide, stats = run.trace.seen[t["n"]].value.double(), t["stats"]
        assert (stats["min"], stats["max"], stats["absmax"]) == (float(wide.min()), float(wide.max()), float(wide.abs().max()))
        assert stats["mean"] == pytest.approx(float(wide.mean()), rel=1e-12, abs=1e-13)
        assert stats["std"] == pytest.approx(float(wide.std(correction=0)), rel=1e-9, abs=1e-13) and stats["nan"] == stats["inf"] == 0


def test_measures_of_numbers_that_are_none() -> None:
    stats = stats_of(torch.tensor([1.0, float("nan"), float("inf"), -3.0, float("-inf")]))
    assert (stats.min, stats.max, stats.mean, stats.std, stats.absmax, stats.nan, stats.inf) == (-3.0, 1.0, -1.0, 2.0, 3.0, 1, 2)
    assert np.isnan(stats_of(torch.tensor([float("nan")])).min) and stats_of(torch.empty(0)).nan == 0


def repooled(x: Tensor, level: int, across: int | None = None) -> Tensor:
    """Pool block by block in plain Python; `level` is of both axes, or of the rows if `across` gives the columns'."""
    flat, across = x if x.ndim > 1 else x[None], level if across is None else across
    down, step = 1 << level if x.ndim > 1 else 1, 1 << across
    out = []
    for plane in flat.reshape(-1, *flat.shape[-2:]):
        for i in range(0, plane.shape[0], down):
            for j in range(0, plane.shape[1], step):
                block = plane[i : i + down, j : j + step].reshape(-1)
                values = block.tolist()
                odd = [v for v in values if v != v]
                far = max(map(abs, values)) if not odd else None
                out.append(odd[0] if odd else far if far in values else -far)
    return torch.tensor(out, dtype=x.dtype).reshape(
        [*x.shape[:-2], *([-(-x.shape[-2] // down)] if x.ndim > 1 else []), -(-x.shape[-1] // step)]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool])
def test_pooled_is_pooled_again(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    for shape in [(7,), (8, 8), (5, 9), (2, 3, 6, 7), (1, 1), (3, 1), (1, 13)]:
        x = torch.randint(0, 2, shape, generator=draw).bool() if dtype == torch.bool else torch.randn(shape, generator=draw) * 40
        x = (x.abs() if dtype == torch.uint8 else x).to(dtype)
        for level in range(5):
            pooled = slices.pooled(x, (level, level))
            assert pooled.dtype == dtype and torch.equal(pooled, repooled(x, level)), (shape, level)
            for across in (0, 1, 3):
                assert torch.equal(slices.pooled(x, (level, across)), repooled(x, level, across)), (shape, level, across)
    with swapped(slices, "pooled", lambda x, level: x[..., :: 1 << level[0], :: 1 << level[1]]):  # the mutant: every other cell
        x = torch.arange(16.0).reshape(4, 4)
        assert not torch.equal(slices.pooled(x, (1, 1)), repooled(x, 1))


def test_what_is_no_number_wins_its_block() -> None:
    x = torch.tensor([[1.0, -2.0, 5.0, 5.0], [0.5, float("nan"), -7.0, 1.0]])
    pooled = slices.pooled(x, (1, 1))
    assert pooled.isnan().tolist() == [[True, False]] and pooled[0, 1] == -7.0


def test_a_level_for_each_axis(api: Served) -> None:
    """Each axis may have its level; one number is of both axes, and a single axis takes the second."""
    run = api.run("pellucid/capitals", CAPITAL)["run"]
    n, s = next((n, s) for n, s in enumerate(api.session.runs[run].trace) if s.path == "logits")
    x, about = api.tensor(run, n, at="0,:,:", level="0,4")
    assert torch.equal(x, repooled(s.value[0], 0, 4)) and x.shape[0] == 5 and about["level"] == "0,4"
    assert about["sha256"] == hashlib.sha256(raw(s.value)).hexdigest()
    with pytest.raises(AssertionError):  # the mutant: the levels the other way round
        assert torch.equal(api.tensor(run, n, at="0,:,:", level="4,0")[0], repooled(s.value[0], 0, 4))
    same, about = api.tensor(run, n, at="0,:,:", level="3,3")
    assert torch.equal(same, api.tensor(run, n, at="0,:,:", level=3)[0]) and about["level"] == "3"
    assert torch.equal(api.tensor(run, n, at="0,4,:", level="9,2")[0], repooled(s.value[0, 4], 2))
    place = f"/api/runs/{run}/tensors/{n}"
    tags = {level: api.client.get(place, params={"level": level}).headers["etag"] for level in ("2", "2,2", "0,2", "2,0")}
    assert tags["2"] == tags["2,2"] and len(set(tags.values())) == 3


def test_a_pooled_part_tells_its_source(api: Served) -> None:
    run = api.run("pellucid/capitals", CAPITAL)
    for n, s in enumerate(api.session.runs[run["run"]].trace):
        x, about = api.tensor(run["run"], n, level=2)
        assert torch.equal(x, repooled(s.value, 2)) and about["level"] == "2"
        assert about["sha256"] == hashlib.sha256(raw(s.value)).hexdigest()
    logits = next(t["n"] for t in run["tensors"] if t["path"] == "logits")
    x, about = api.tensor(run["run"], logits, at="0,4,16:80", level=3)
    assert x.shape == (8,) and about["at"] == "0,4,16:80"


def test_parts_that_are_none(api: Served) -> None:
    run = api.run("pellucid/capitals", CAPITAL)["run"]
    place = f"/api/runs/{run}/tensors/0"  # 1 x 5 x 128
    for at, code in [
        ("0,1", "server.axes"), ("0,1,2,3", "server.axes"), ("", "server.axes"), ("0,5,0", "server.outside"), ("1,0,0", "server.outside"),
        ("0,0,-1", "server.part"), ("0,a,0", "server.part"), ("0,3:3,0", "server.outside"), ("0,4:2,0", "server.outside"),
        ("0,0:6,0", "server.outside"), ("0,1:2:3,0", "server.part"), ("0,٣,0", "server.part"), ("0,0,99999999999999999", "server.part"),
    ]:  # fmt: skip
        assert api.wrong(place, 400, code, at=at)["param"] == "at"
    for level in ("31", "-1", "1.0", "", "9" * 30, "1,", ",1", "1,31", "1,2,3", "1, 2"):
        assert api.wrong(place, 400, "server.field", level=level)["param"] == "level"
    api.wrong(place, 400, "server.unknown", rows="0:2")
    api.wrong(f"/api/runs/{run}/tensors/99999", 404, "server.tensor")
    api.wrong(f"/api/runs/{'0' * 32}/tensors/0", 404, "server.run")
    for cell, code in [
        ("", "cell.index"),
        ("0,5,0", "cell.range"),
        ("0,0,0,0", "cell.count"),
        ("x", "cell.index"),
        ("1,1,1;", "cell.index"),
    ]:
        api.wrong(f"{place}/terms", 400, code, cell=cell)


def test_the_browser_keeps_what_it_has(api: Served) -> None:
    run = api.run("pellucid/capitals", CAPITAL)["run"]
    reply = api.client.get(f"/api/runs/{run}/tensors/3", params={"at": "0,:,0:8"})
    assert (
        reply.headers["cache-control"] == "private, max-age=31536000, immutable"
        and reply.headers["content-type"] == "application/octet-stream"
    )
    again = api.client.get(f"/api/runs/{run}/tensors/3", params={"at": "0,:,0:8"}, headers={"if-none-match": reply.headers["etag"]})
    assert again.status_code == 304 and again.content == b""
    other = api.client.get(f"/api/runs/{run}/tensors/3", params={"at": "0,:,1:9"}, headers={"if-none-match": reply.headers["etag"]})
    assert other.status_code == 200 and other.headers["etag"] != reply.headers["etag"]
    assert api.client.get("/api/models").headers["cache-control"] == "no-store"


def test_weights(api: Served, models: dict[str, pellucid.Model]) -> None:
    model = models["pellucid/capitals-deepseek"]
    weights = api.get("/api/weights", "weights", model=model.name)["weights"]
    tensors = {**dict(model.module.named_parameters()), **dict(model.module.named_buffers())}
    assert {w["path"] for w in weights} == set(tensors) and sum(w["count"] for w in weights if w["parameter"]) == model.num_parameters()
    for w in weights:
        x, about = api.values("/api/weights/tensor", model=model.name, path=w["path"])
        assert raw(x) == raw(tensors[w["path"]]) and about["sha256"] == hashlib.sha256(raw(x)).hexdigest()
    x, _ = api.values("/api/weights/tensor", model=model.name, path="embed.weight", at="16:48,:", level=2)
    assert torch.equal(x, repooled(model.module.embed.weight.detach()[16:48], 2))
    api.wrong("/api/weights/tensor", 404, "server.weight", model=model.name, path="embed")
    api.wrong("/api/weights/tensor", 404, "server.model", model="/etc/passwd", path="embed.weight")
    api.wrong("/api/weights", 400, "server.field")


def test_measures_of_weights(api: Served, models: dict[str, pellucid.Model]) -> None:
    name = "pellucid/capitals-llama"
    for path in ("embed.weight", "layers.1.attn.k.weight", "norm.weight"):
        document = api.get("/api/weights/tensor/stats", "weight_stats", model=name, path=path)
        wide, stats = dict(models[name].module.named_parameters())[path].detach().double(), document["stats"]
        assert (document["path"], stats["min"], stats["max"], stats["absmax"]) == (
            path,
            float(wide.min()),
            float(wide.max()),
            float(wide.abs().max()),
        )
        assert stats["std"] == pytest.approx(float(wide.std(correction=0)), rel=1e-9)
    api.wrong("/api/weights/tensor/stats", 404, "server.weight", model=name, path="embed")
    api.wrong("/api/weights/tensor/stats", 400, "server.unknown", model=name, path="embed.weight", at="0,:")


def test_count_is_the_commands(api: Served) -> None:
    for name, how in [("pellucid/capitals", {}), ("gpt2-small", {"context": 64, "batch": 3, "device": "h200", "dtype": "float32"})]:
        reply = api.client.get("/api/count", params={"model": name, **how})
        document = reply.json()
        formulas = judge(document.pop("formulas"), "formulas")
        assert formulas["parameters.total"] == pellucid.count(name, **how)["parameters.total"].formula
        accept(document, "count")
        assert document == json.loads(json.dumps(count.document(pellucid.count(name, **how))))
    api.wrong("/api/count", 404, "server.counted", model="meta-llama/Llama-3.1-8B")
    api.wrong("/api/count", 400, "server.field", model="gpt2-small", context="1e3")
    api.wrong("/api/count", 400, "count.device", model="gpt2-small", device="../x")
    listing = api.get("/api/catalog", "catalog")
    assert [m["id"] for m in listing["models"]] == list(catalog.models()) and [
        d["id"] for d in listing["devices"] if d["id"] != "cpu"
    ] == list(catalog.devices())
    assert [m["id"] for m in listing["models"] if not m["disclosed"]] == [e["id"] for e in catalog.models().values() if "statements" in e]


def test_tokens(api: Served, models: dict[str, pellucid.Model]) -> None:
    for name, text in (("pellucid/capitals", "法国的首都是"), ("pellucid/capitals-bert", "The capital of France is.")):
        reply = judge(api.client.post("/api/tokens", json={"model": name, "prompt": text}).json(), "tokens")
        assert reply["ids"] == models[name].ids(text) and len(reply["tokens"]) == len(reply["ids"])


def test_shapes_without_weights() -> None:
    """A catalogue's model has the tensors, shapes and products of the real one; it has no value, and says so."""
    with served("gpt2-small") as api:
        first = api.get("/api/models", "models")
        assert first["current"] == "gpt2-small" and not first["models"][0]["weights"] and first["models"][0]["prompt"] is None
        assert first["models"][0]["parameters"] == 124_439_808
        run = api.run("gpt2-small", [0] * 7)
        logits = run["tensors"][-1]  # nothing is sampled
        assert not run["values"] and (logits["path"], logits["shape"], logits["stats"]) == ("logits", [1, 7, 50257], None)
        assert run["steps"][0]["count"] == len(run["tensors"]) and logits["flops"] == 2 * 7 * 768 * 50257
        place = f"/api/runs/{run['run']}/tensors/3"
        assert "layers.0" in api.wrong(place, 400, "server.meta")["message"]
        api.wrong(f"{place}/terms", 400, "server.meta", cell="0,0,0")
        api.wrong(f"{place}/stats", 400, "server.meta")
        api.wrong("/api/weights/tensor", 400, "server.meta", model="gpt2-small", path="embed.weight", at="0,:")
        api.wrong("/api/weights/tensor/stats", 400, "server.meta", model="gpt2-small", path="embed.weight")
        shapes = {w["path"]: w["shape"] for w in api.get("/api/weights", "weights", model="gpt2-small")["weights"]}
        assert shapes["embed.weight"] == [50257, 768]
        reply = api.client.post("/api/runs", json={"model": "gpt2-small", "prompt": "a"})
        assert judge(reply.json(), "error")["error"]["code"] == "server.shapes"


def test_whether_terms_are_served(tmp_path: Path, models: dict[str, pellucid.Model]) -> None:
    """A tensor says that it has terms exactly if they are served: kept, dropped, deferred or edited, of a file, or of shapes.

    Each second model has one of three limits, with PELLUCID_FULL=1 each model each of them.
    """

    def judged(api: Served, run: dict[str, Any]) -> dict[bool, set[str]]:
        by_terms: dict[bool, set[str]] = {True: set(), False: set()}
        for t in run["tensors"]:
            cell = ",".join("0" for _ in t["shape"])
            reply = api.client.get(f"/api/runs/{run['run']}/tensors/{t['n']}/terms", params={"cell": cell})
            assert t["terms"] == (reply.status_code == 200), (t, reply.text)
            by_terms[t["terms"]].add(t["path"])
        return by_terms

    changes = ["layers.2.ffn *= 2"]
    every = (LIMITS, Limits(value=400, kept=4_000), Limits(tables=0))
    for name, limits in itertools.product(models, every) if FULL else zip([*models][::2], itertools.cycle(every), strict=False):
        with served(name, limits) as api:
            run = api.run(name, CAPITAL if name != "pellucid/capitals-bert" else f"{CAPITAL} ___.")
            assert judged(api, run)[False] == set()
    with served() as api:
        assert judged(api, api.run("pellucid/capitals", CAPITAL, changes=changes))[False] == {"layers.2.ffn"}
    pellucid.trace(models["pellucid/capitals"], CAPITAL, terms=True).save(tmp_path / "t")
    with served(str(tmp_path / "t")) as api:
        assert judged(api, api.get(f"/api/runs/{api.get('/api/models', 'models')['run']}", "run"))[True] == set()
    with served("gpt2-small") as api:
        assert judged(api, api.run("gpt2-small", [1, 2, 3]))[True] == set()


def test_a_recorded_trace(tmp_path: Path, models: dict[str, pellucid.Model]) -> None:
    model = models["pellucid/capitals"]
    life_ = pellucid.trace(model, CAPITAL, 2)
    life_.save(tmp_path / "t")
    with served(str(tmp_path / "t")) as api:
        first = api.get("/api/models", "models")
        run = api.get(f"/api/runs/{first['run']}", "run")
        assert (run["ids"], run["new"], run["text"]) == (life_.ids, life_.new, " Paris.")
        assert raw(api.tensor(run["run"], 5)[0]) == raw(life_.seen[5].value)
        api.wrong(f"/api/runs/{run['run']}/tensors/5/terms", 400, "page.unsummed", cell="0,0,0,0")
        assert api.run(model.name, CAPITAL)["new"] == life_.new[:1]


def test_a_trace_of_a_model_that_is_not_here(folder: Path, tmp_path: Path) -> None:
    """A model name that is a path is not opened, and ids stand for pieces."""
    pellucid.trace(pellucid.load(folder), "The").save(tmp_path / "t")
    with served(str(tmp_path / "t")) as api:
        run = api.get(f"/api/runs/{api.get('/api/models', 'models')['run']}", "run")
        assert run["kind"] is None and run["text"] is None and run["model"] == str(folder)
        assert api.tensor(run["run"], 0)[0].shape[0] == 1
        api.wrong("/api/weights", 404, "server.model", model=str(folder))


@pytest.mark.parametrize("name", specimens())
@pytest.mark.quick(7)
def test_a_traces_file_tells_what_its_run_did(name: str, tmp_path: Path) -> None:
    """A trace's file gives its run's pieces, kinds, fed tokens and candidates, with and without the model."""
    shutil.copytree(SPECIMENS / name.split("/")[1], tmp_path / "model")
    prompt = CAPITAL if name != "pellucid/capitals-bert" else f"{CAPITAL} ___."
    new = 1 if name == "pellucid/capitals-bert" else 3
    with served(name) as api:
        first_run = api.run(name, prompt, new=new)
    for model in (str(tmp_path / "model"), name):
        place = tmp_path / str(model == name)
        pellucid.trace(pellucid.load(model, dtype="float32"), prompt, new).save(place)
        with served(str(place)) as api:
            run = api.get(f"/api/runs/{api.get('/api/models', 'models')['run']}", "run")
            changed = [k for k in ("ids", "pieces", "new", "new_pieces", "steps") if run[k] != first_run[k]]
            assert changed == []
            assert run["kind"] == (None if model != name and first_run["kind"] in ("decoder", "prefix") else first_run["kind"])


def test_a_trace_beside_its_model(folder: Path, tmp_path: Path) -> None:
    """Beside its model a trace has the lens; another model, one without weights and a model beside no trace are refused."""
    model = pellucid.load(folder)
    trace = pellucid.trace(model, "The capital")
    trace.model = "elsewhere"
    trace.save(tmp_path / "t")
    with served(str(tmp_path / "t"), recorded_by=str(folder)) as api:
        first = api.get("/api/models", "models")
        run = api.get(f"/api/runs/{first['run']}", "run")
        assert first["current"] == run["model"] == str(folder)
        lens = api.get(f"/api/runs/{first['run']}/steps/0/lens", "lens")
        assert lens["layers"][-1]["followed"]["logit"] == pytest.approx(float(trace.last_logits().max()), rel=1e-5)
        assert api.get(f"/api/runs/{first['run']}/steps/0/attribution", "attribution")["id"] == trace.new[0]
        assert api.run(str(folder), "The capital")["steps"] == run["steps"]
    for opened, model_name, key in (
        (tmp_path / "t", "pellucid/capitals", "open.fits"),
        (tmp_path / "t", "gpt2-small", "open.weights"),
        (folder, "pellucid/capitals", "open.beside"),
    ):
        with pytest.raises(UseError) as wrong:
            Session(str(opened), LIMITS, model_name)
        assert wrong.value.key == key


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_a_traces_model_stands_beside_it_in_its_type(dtype: str, tmp_path: Path) -> None:
    """The model is loaded in the trace's dtype, and a model that only has the name is not used."""
    trace = pellucid.trace(pellucid.load("pellucid/capitals", dtype=dtype), CAPITAL)
    trace.save(tmp_path / "t")
    with served(str(tmp_path / "t")) as api:
        models = api.get("/api/models", "models")
        assert {m["name"]: m["dtype"] for m in models["models"]}["pellucid/capitals"] == dtype
        lens = api.get(f"/api/runs/{models['run']}/steps/0/lens", "lens")
        assert lens["layers"][-1]["followed"]["logit"] == pytest.approx(float(trace.last_logits().max()), rel=1e-6)
        assert api.run("pellucid/capitals", CAPITAL)["steps"] == api.get(f"/api/runs/{models['run']}", "run")["steps"]
    trace.model = "pellucid/capitals-deepseek"
    trace.save(tmp_path / "other")
    with served(str(tmp_path / "other")) as api:
        run = api.get("/api/models", "models")["run"]
        assert api.get(f"/api/runs/{run}", "run")["kind"] is None
        api.wrong(f"/api/runs/{run}/steps/0/lens", 400, "server.alone")


def test_answers_of_a_hostile_trace(tmp_path: Path) -> None:
    """Steps whose logits are invalid or whose ids lie beyond them have no candidates; the others have theirs."""
    sizes = [(1, 2, 5), (5,), (0, 1, 5), (1, 0, 5), (1, 1, 0), (1, 1, 2), (1, 1, 5)]
    values = [torch.ones(n) for n in sizes] + [torch.ones(1, 1, 5, dtype=torch.long)]
    dims = {1: "V", 3: "B T V"}
    seen = [Seen("logits", dims[v.ndim], tuple(v.shape), v.dtype, v, k, None, 0, None) for k, v in enumerate(values)]
    Trace("m", "x", [1, 2], [3] * len(seen), seen).save(tmp_path / "t")
    with served(str(tmp_path / "t")) as api:
        run = api.get(f"/api/runs/{api.get('/api/models', 'models')['run']}", "run")
        assert [len(s["answers"]) for s in run["steps"]] == [1, 0, 0, 0, 0, 0, 1, 0]
    seen[-1].step = 10**15
    Trace("m", "x", [1, 2], [3], seen).save(tmp_path / "far")
    with pytest.raises(TraceError) as wrong:
        Session(str(tmp_path / "far"), LIMITS)
    assert wrong.value.key == "trace.steps" and str(tmp_path / "far") in str(wrong.value)


def test_a_folder(folder: Path) -> None:
    with served(str(folder)) as api:
        assert api.get("/api/models", "models")["current"] == str(folder)
        run = api.run(str(folder), "The capital", new=2)
        assert run["new"] == pellucid.trace(pellucid.load(folder), "The capital", 2).new


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_measures_of_several_strips(dtype: torch.dtype) -> None:
    """Statistics of three strips and a rest, far from 0 and growing, with NaN and infinities, equal those of the whole."""
    n = 3 * STRIP + 7
    x = torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + torch.linspace(50, 90, n, dtype=torch.float64)
    x = (x > 70 if dtype == torch.bool else x).to(dtype)
    if dtype.is_floating_point:
        x[5], x[STRIP + 9], x[-1] = float("nan"), float("inf"), float("-inf")
    stats, wide = stats_of(x.view(-1, 1).T), x.double()
    wide = wide[wide.isfinite()]
    assert (stats.min, stats.max, stats.nan + stats.inf) == (float(wide.min()), float(wide.max()), n - len(wide))
    assert stats.mean == pytest.approx(float(wide.mean()), rel=1e-12)
    assert stats.std == pytest.approx(float(wide.std(correction=0)), rel=1e-11)
