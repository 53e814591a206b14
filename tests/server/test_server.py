"""The page's API gives the Python API's ids, bits and sums, and every document fits its schema."""

import hashlib
import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pellucid
from documented import Refused
from pellucid.api.model import specimens
from pellucid.checkpoint.opening import recorded_runs
from pellucid.documents.cell import cell_of, terms_document
from pellucid.documents.run_view import explain
from pellucid.ops.sampling import stages
from pellucid.ops.sampling.settings import Sampling
from pellucid.runs.answers import visible
from pellucid.runs.examples import example
from pellucid.runs.kept_run import kept
from pellucid.runs.limits import LIMITS, Limits
from served import SCHEMA, Served, judge, raw, served
from tiny import swapped

CAPITAL = "The capital of France is"


@pytest.fixture(scope="module")
def rows(api: Served) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in api.get("/api/models", "models")["models"]}


@pytest.fixture(scope="module")
def models() -> dict[str, pellucid.Model]:
    return {name: pellucid.load(name, dtype="float32") for name in specimens()}


def test_models(api: Served, rows: dict[str, Any], models: dict[str, pellucid.Model]) -> None:
    assert api.get("/api/models", "models")["current"] == "pellucid/capitals" and next(iter(rows)) == "pellucid/capitals"
    assert set(rows) == {*specimens(), *recorded_runs()}
    for name, model in models.items():
        row = rows[name]
        assert (row["family"], row["parameters"], row["vocab"]) == (model.family.name, model.num_parameters(), model.config.vocab)
        assert row["weights"] and row["prompt"] == example(name, row["kind"])
    kinds = {name.removeprefix("pellucid/"): row["kind"] for name, row in rows.items()}
    assert kinds == {
        "capitals": "decoder", "capitals-llama": "decoder", "capitals-deepseek": "decoder", "capitals-prefix": "prefix",
        "capitals-bert": "encoder", "capitals-t5": "encoder-decoder", "reader": "decoder",
        "twelve-countries": "decoder",
    }  # fmt: skip


@pytest.mark.parametrize("name", specimens())
@pytest.mark.quick(4)
def test_a_run_is_the_trace(name: str, api: Served, rows: dict[str, Any], models: dict[str, pellucid.Model]) -> None:
    """Every record of every step is there in order, with the value's bits, any part of it, and its hash."""
    model, prompt = models[name], rows[name]["prompt"]
    new = 1 if rows[name]["kind"] == "encoder" else 3
    run = api.run(name, prompt, new=new)
    mine = explain(model, prompt, new, LIMITS.candidates, terms=True)
    assert (run["ids"], run["new"], run["text"]) == (mine.trace.ids, mine.trace.new, model.tokenizer.decode(mine.trace.new))
    assert run["pieces"] == [visible(p) for p in mine.pieces]
    tensors = [t for k in range(len(run["steps"])) for t in api.get(f"/api/runs/{run['run']}/steps/{k}", "step")["tensors"]]
    assert run["tensors"] == tensors[: len(run["tensors"])] and [t["n"] for t in tensors] == list(range(len(mine.trace)))
    dice = random.Random(name)
    for t, s, line in zip(tensors, mine.trace, (x for m in mine.steps for x in m.tensors), strict=True):
        assert (t["path"], t["dims"], t["shape"], t["step"], t["call"]) == (s.path, s.dims, list(s.shape), s.step, s.call)
        assert (t["source"], t["error"], t["op"], t["made"]) == (s.source, s.error, s.op, line.made)
        assert (t["inputs"], t["weights"]) == (list(s.inputs), list(s.weights)) and (t["block"], t["name"]) == (line.block, line.name)
        assert t["parameters"] == sum(w.count for w in line.own if w.parameter) and t["bytes"] == s.value.nbytes and t["kept"]
        x, about = api.tensor(run["run"], t["n"])
        assert x.dtype == s.dtype and raw(x) == raw(s.value) and about["sha256"] == hashlib.sha256(raw(s.value)).hexdigest()
        part = [(a := dice.randrange(n), dice.choice([a, slice(a, dice.randint(a + 1, n)), slice(None)]))[1] for n in s.shape]
        at = ",".join(":" if p == slice(None) else str(p) if isinstance(p, int) else f"{p.start}:{p.stop}" for p in part)
        x, about = api.tensor(run["run"], t["n"], at=at)
        assert raw(x) == raw(s.value[tuple(part)]) and x.shape == s.value[tuple(part)].shape
        assert about["sha256"] == hashlib.sha256(raw(x)).hexdigest() and (about["path"], about["level"]) == (s.path, "0")
    for step, moment in zip(run["steps"], mine.steps, strict=True):
        assert (step["fed"], step["past"], step["count"]) == (moment.fed, moment.cached, len(moment.tensors))
        assert [a["row"] for a in step["answers"]] == [a.row for a in moment.answers]
        for mine_, its in zip(moment.answers, step["answers"], strict=True):
            its_rows = [(c["id"], c["logit"], c["probability"]) for c in (its["picked"], *its["candidates"])]
            assert its_rows == [(c.id, c.logit, c.probability) for c in (mine_.picked, *mine_.candidates)]


@pytest.mark.parametrize("name", specimens())
def test_products_of_tensors_add_up(name: str, api: Served, rows: dict[str, Any], models: dict[str, pellucid.Model]) -> None:
    """The FLOPs of the run's tensors add up to the watched forward's."""
    model, prompt = models[name], rows[name]["prompt"]
    run = api.run(name, prompt)
    with pellucid.watch(model) as seen, torch.no_grad():
        ids = torch.tensor([run["ids"]])
        model(ids, torch.tensor([[model.config.starts]])) if model.config.starts is not None else model(ids)
    assert sum(t["flops"] for t in run["tensors"]) == sum(seen.flops.values()) > 0
    assert all(t["flops"] == 0 for t in run["tensors"] if t["source"] == "recomputed")


@pytest.fixture(scope="module")
def exact() -> Iterator[Served]:
    """Serve a model in float64, whose sums show every digit."""
    with served("pellucid/capitals-deepseek", dtype="float64") as api:
        yield api


def sums(api: Served) -> int:
    """Return the number of cells that are not the sum of their terms, one cell of every tensor of two steps."""
    run = api.run("pellucid/capitals-deepseek", CAPITAL, new=2)
    dice, wrong = random.Random(1), 0
    for n, s in enumerate(api.session.runs[run["run"]].trace):
        cell = [dice.randrange(k) for k in s.shape]
        reply = api.client.get(f"/api/runs/{run['run']}/tensors/{n}/terms", params={"cell": ",".join(map(str, cell))})
        document = judge(reply.json(), "terms")
        assert (
            document["index"] == cell
            and document["count"] == len(document["summands"])
            and document["value"] == float(s.value[tuple(cell)])
        )
        products = np.prod(list(document["factors"].values()), axis=0) if document["factors"] else []
        assert np.allclose([*products, *document["added"].values()], document["summands"], rtol=1e-12, atol=1e-300)
        assert document["total"] == pytest.approx(sum(document["summands"]), rel=1e-9, abs=1e-12)
        wrong += document["total"] != pytest.approx(document["value"], rel=1e-9, abs=1e-10)
        terms = cell_of(s, ",".join(map(str, cell))).terms
        assert list(document["factors"].values()) == [f.tolist() for f in terms.factors.values()]
        assert list(document["added"].values()) == list(terms.added.values())
    return wrong


def test_terms_add_up_to_the_cell(exact: Served) -> None:
    assert sums(exact) == 0


def test_terms_of_another_cell_are_seen(exact: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(run: Any, seen: Any, index: str, limits: Limits) -> dict[str, Any]:
        document = terms_document(run, seen, index, limits)
        other = terms_document(run, seen, ",".join("0" for _ in seen.shape), limits)
        return document | {k: other[k] for k in ("factors", "summands", "total", "count")}

    monkeypatch.setattr("pellucid.server.session.terms_document", shifted)
    with pytest.raises(AssertionError):
        assert sums(exact) == 0


def test_a_run_is_found_again(api: Served) -> None:
    run = api.run("pellucid/capitals-llama", CAPITAL)
    assert api.get(f"/api/runs/{run['run']}", "run") == run


SETTINGS: list[dict[str, Any]] = [
    {"temperature": 1.5, "seed": 1},
    {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.05, "seed": 2},
    {"temperature": 3.0, "repetition": 1.3, "presence": 0.5, "frequency": 0.7, "seed": 3},
    {"temperature": 0.0, "bias": {"17": 30.0}},
    {},
]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", ["pellucid/capitals-llama", "pellucid/capitals-t5"])
@pytest.mark.quick(4)
def test_sampling_is_the_engines(name: str, setting: dict[str, Any], api: Served, models: dict[str, pellucid.Model]) -> None:
    """A run samples as `generate` does; the stages and token of any setting are given at any step without running the model."""
    model = models[name]
    ids = model.ids("The")
    run = api.run(name, "The", new=6, sampling=setting)
    settings = {"seed": 0} | setting | ({"bias": {17: 30.0}} if "bias" in setting else {})
    assert [run["new"]] == model.generate([ids], 6, eos=model.stops, **settings)
    assert [s["answers"][0]["picked"]["id"] for s in run["steps"]] == run["new"]
    read = ids if model.config.starts is None else [model.config.starts]
    with swapped(torch.nn.Module, "__call__", None):
        for k in range(len(run["steps"])):
            reply = api.client.post(f"/api/runs/{run['run']}/steps/{k}/sample", json={"sampling": setting, "top": 30})
            document = judge(reply.json(), "sample")
            assert document["picked"] == run["new"][k]
            logits = api.session.runs[run["run"]].trace.all("logits")[k].value[0, -1]
            mine = stages.stages(logits, Sampling.of(settings), read, run["new"][:k])
            assert [s["name"] for s in document["stages"]] == [n for n, _ in mine]
            for at, (_, x) in enumerate(mine):
                assert [r["values"][at] for r in document["rows"]] == [
                    v if abs(v) < 1e30 else None for v in x[[r["id"] for r in document["rows"]]].tolist()
                ]
                assert document["stages"][at]["left"] == int(
                    (x > (0 if document["stages"][at]["name"] == "probabilities" else -1e30)).sum()
                )


def test_sampling_that_cannot_be(api: Served) -> None:
    run = api.run("pellucid/capitals", "The")["run"]

    def code(step: object = 0, **body: Any) -> str:
        reply = api.client.post(f"/api/runs/{run}/steps/{step}/sample", json=body)
        assert 400 <= reply.status_code < 500
        return str(judge(reply.json(), "error")["error"]["code"])

    assert (
        code(sampling={"temperature": -1}) == code(sampling={"top_p": "1"}) == "sampling.number"
        and code(sampling={"top_k": 1.5}) == "sampling.whole"
    )
    assert code(sampling={"nix": 1}) == "sampling.unknown" and code(sampling={"bias": {"4480": 1}}) == "sampling.id"
    assert (
        code(sampling={"bias": {"x": 1}})
        == code(sampling=[1])
        == code(row=1)
        == code(row=-2)
        == code(top=0)
        == code(top=1001)
        == code(1)
        == "server.field"
    )
    assert code(sampling={"bias": {str(i): -1000 for i in range(3)}}, more=1) == "server.unknown"


def test_changes_are_the_watchs(api: Served, models: dict[str, pellucid.Model]) -> None:
    """A head set to 0, a multiplied cell and rows of another prompt give the logits of `watch(edit=...)`."""
    model = models["pellucid/capitals"]
    ids = torch.tensor([model.ids(CAPITAL)])
    other = api.run(model.name, "The capital of Japan is")
    n = next(t["n"] for t in other["tensors"] if t["path"] == "layers.1.out")
    patch = api.tensor(other["run"], n)[0]

    def head(x: Tensor) -> Tensor:
        x[:, :, 2] = 0.0
        return x

    def cell(x: Tensor) -> Tensor:
        x[0, 1, 3] *= -2.0
        return x

    def put(x: Tensor) -> Tensor:
        x[:, 3:] = patch[:, 3:]
        return x

    for text, path, f in [
        ("layers.2.attn.z[:, :, 2, :] = 0", "layers.2.attn.z", head),
        ("layers.0.ffn.up[0, 1, 3] *= -2", "layers.0.ffn.up", cell),
        ('layers.1.out[T=3:] = from "The capital of Japan is"', "layers.1.out", put),
    ]:
        run = api.run(model.name, CAPITAL, changes=[text])
        with pellucid.watch(model, edit={path: f}) as seen, torch.no_grad():
            model(ids)
        last = next(t for t in run["tensors"] if t["path"] == "logits")
        assert run["edited"] == [path]
        assert torch.allclose(api.tensor(run["run"], last["n"])[0], seen["logits"].value, rtol=1e-5, atol=1e-5)
        assert next(t["source"] for t in run["tensors"] if t["path"] == path) == "edited"
        plain = api.run(model.name, CAPITAL)
        assert not torch.allclose(api.tensor(plain["run"], last["n"])[0], seen["logits"].value, atol=1e-2)
    once = api.run(model.name, CAPITAL, new=2, changes=["embed[T=5] = 0"])
    values = [api.tensor(once["run"], once["steps"][k]["first"])[0] for k in (0, 1)]
    assert bool(values[0].any()) and not values[1].any()


def test_changes_that_cannot_be(api: Served) -> None:
    def code(*changes: object) -> str:
        reply = api.client.post("/api/runs", json={"model": "pellucid/capitals", "prompt": CAPITAL, "changes": list(changes)})
        assert reply.status_code == 400
        return str(judge(reply.json(), "error")["error"]["code"])

    assert code("layers.9.out = 0") == "edit.unmet"
    assert code("embed[0, 0] = 0") == "change.axes"
    assert code("embed") == code('embed from "x"') == "change.text"
    assert code("embed = zero") == "change.unmade"  # a tensor of that name
    assert code(1) == code({"path": "embed"}) == "server.field"
    assert code("embed = /etc/passwd.safetensors") == "server.change.file"
    assert code('embed[T=1] = from "The capital" [T=0,1]') == "change.shape"


def test_a_value_too_large_to_keep_is_computed_again(models: dict[str, pellucid.Model]) -> None:
    model = models["pellucid/capitals"]
    mine = pellucid.trace(model, CAPITAL, 2, terms=True)
    with served(limits=Limits(value=400, kept=4_000)) as api:  # tables of 5 x 5 x 4 float32 are as large as may be
        run = api.run(model.name, CAPITAL, new=2)
        tensors = [t for k in (0, 1) for t in api.get(f"/api/runs/{run['run']}/steps/{k}", "step")["tensors"]]
        lost = [t for t in tensors if not t["kept"]]
        assert len(lost) > 50 and all(api.session.runs[run["run"]].trace.seen[t["n"]].terms is None for t in lost)
        assert sum(s.value.nbytes for s in api.session.runs[run["run"]].trace if kept(s)) <= 4_000 and len(api.session.runs) == 1
        for t in [*random.Random(2).sample(lost, 12), tensors[-1]]:
            s = mine.seen[t["n"]]
            assert t["stats"]["absmax"] == float(s.value.double().abs().max())
            assert raw(api.tensor(run["run"], t["n"])[0]) == raw(s.value)
            cell = ",".join(str(n - 1) for n in s.shape)
            if s.terms is not None:
                document = api.get(f"/api/runs/{run['run']}/tensors/{t['n']}/terms", "terms", cell=cell)
                assert document["summands"] == cell_of(s, cell).terms.summands.tolist()


def test_a_changed_value_is_computed_again_as_it_was_changed(api: Served) -> None:
    changes = ["layers.0.out[T=5] *= 2", 'layers.1.mid[T=:5] = from "The capital of Japan is"']
    full = api.run("pellucid/capitals", CAPITAL, new=2, changes=changes)
    with served(limits=Limits(value=400)) as small:
        run = small.run("pellucid/capitals", CAPITAL, new=2, changes=changes)
        for k, path in itertools.product((0, 1), ("layers.0.out", "layers.1.mid", "layers.3.out")):
            n = next(n for n, s in enumerate(api.session.runs[full["run"]].trace) if (s.path, s.step) == (path, k))
            assert raw(small.tensor(run["run"], n)[0]) == raw(api.tensor(full["run"], n)[0])
            assert raw(small.tensor(run["run"], n)[0]) == raw(api.tensor(full["run"], n)[0])


def test_the_schema_sees_mutants(api: Served) -> None:
    document = api.run("pellucid/capitals", "The")
    for mutant in ({"schema": 2}, {"ids": [-1]}, {"run": "../x"}, {"more": 1}):
        with pytest.raises(Refused):
            judge(document | mutant, "run")
    assert set(SCHEMA["$defs"]) >= {"models", "run", "step", "terms", "weights", "catalog", "tokens", "error"}
