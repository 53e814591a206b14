"""Beyond a run's tensors the API gives the lens, attributions, rotations, masks, routers, reusable cache rows and differences."""

from typing import Any

import pytest
import torch

import pellucid
from pellucid.analysis.attribution import attribution
from pellucid.analysis.by_axis import along
from pellucid.analysis.lens import lens
from pellucid.api.model import Model
from pellucid.batch.mask import prefix, window
from pellucid.batch.step import Step
from pellucid.config import Dynamic, Rope
from pellucid.documents import rotary, run_difference
from pellucid.engine.engine import Engine
from pellucid.engine.memory import PAGE
from pellucid.engine.requests import Request
from pellucid.engine.scheduler import SchedulerLimits
from pellucid.ops import angles
from pellucid.ops.sampling.stages import probabilities
from pellucid.runs.limits import Limits
from served import Served, judge, served
from tiny import swapped

CAPITAL, JAPAN = "The capital of France is", "The capital of Japan is"
ALL = ["capitals", "capitals-llama", "capitals-deepseek", "capitals-prefix", "capitals-t5"]


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    return {name: pellucid.load(f"pellucid/{name}", dtype="float32") for name in (*ALL, "capitals-bert")}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.quick(4)
def test_the_lens_is_the_python_apis(api: Served, models: dict[str, Model], name: str) -> None:
    run, trace = api.run(f"pellucid/{name}", CAPITAL, new=2), pellucid.trace(models[name], CAPITAL, 2)
    for k in (0, 1):
        document = api.get(f"/api/runs/{run['run']}/steps/{k}/lens", "lens", top=3)
        expected = lens(models[name], trace, k)
        assert [r["path"] for r in document["layers"]] == [path for path, _ in expected] and document["id"] == trace.new[k]
        for row, (_, logits) in zip(document["layers"], expected, strict=True):
            assert row["followed"]["logit"] == float(logits[trace.new[k]])
            assert row["rank"] == 1 + int((logits > logits[trace.new[k]]).sum())
            assert [c["id"] for c in row["candidates"]] == logits.argsort(descending=True, stable=True)[:3].tolist()
            assert row["candidates"][0]["probability"] == float(probabilities(logits).max())
        assert document["layers"][-1]["rank"] == 1
    other = api.get(f"/api/runs/{run['run']}/steps/0/lens", "lens", id=7, row=0)
    assert other["layers"][-1]["followed"]["logit"] == float(lens(models[name], trace, 0, 0)[-1][1][7])


@pytest.mark.parametrize("name", ALL)
def test_attributions_are_the_python_apis_and_add_up(api: Served, models: dict[str, Model], name: str) -> None:
    run, trace = api.run(f"pellucid/{name}", CAPITAL), pellucid.trace(models[name], CAPITAL)
    for given in ({}, {"id": 9}):
        document = api.get(f"/api/runs/{run['run']}/steps/0/attribution", "attribution", **given)
        expected = attribution(models[name], trace, document["id"])
        assert [(s["path"], s["head"], s["value"]) for s in document["parts"]] == [(s.path, s.head, s.value) for s in expected.parts]
        assert [(s["path"], s["value"]) for s in document["rest"]] == [(s.path, s.value) for s in expected.rest]
        assert document["value"] == float(trace.last_logits()[document["id"]])
        assert sum(s["value"] for s in document["parts"] + document["rest"]) == pytest.approx(document["value"], abs=2e-5)


def test_a_blank_is_looked_into_by_its_row(api: Served, models: dict[str, Model]) -> None:
    text = "The capital of France is ___."
    run, trace = api.run("pellucid/capitals-bert", text), pellucid.trace(models["capitals-bert"], text)
    row = run["steps"][0]["answers"][0]["row"]
    document = api.get(f"/api/runs/{run['run']}/steps/0/lens", "lens", row=row)
    assert document["layers"][-1]["followed"]["logit"] == pytest.approx(float(trace["logits"].value[0, row, document["id"]]), abs=1e-4)
    apart = api.get(f"/api/runs/{run['run']}/steps/0/attribution", "attribution", row=row)
    total = sum(part["value"] for part in (*apart["parts"], *apart["rest"]))  # through the head's activation, a factor of each number
    assert apart["parts"] and total == pytest.approx(float(trace["logits"].value[0, row, document["id"]]), abs=1e-3)


def test_what_the_lens_refuses(api: Served) -> None:
    run, translated = (api.run(f"pellucid/{name}", CAPITAL)["run"] for name in ("capitals", "capitals-t5"))
    for place in ("lens", "attribution"):
        api.wrong(f"/api/runs/{run}/steps/0/{place}", 400, "server.field", row=5)
        api.wrong(f"/api/runs/{run}/steps/0/{place}", 400, "server.field", row=2)  # nothing was picked there, and no id is given
        api.wrong(f"/api/runs/{run}/steps/0/{place}", 400, "server.field", id=4480)
        api.wrong(f"/api/runs/{run}/steps/1/{place}", 400, "server.field")
        api.wrong(f"/api/runs/{run}/steps/0/{place}", 400, "server.unknown", hue=1)
        api.wrong(f"/api/runs/{translated}/steps/0/{place}", 400, "server.field", row=1, id=7)  # its decoder has one row, its source five
    api.wrong(f"/api/runs/{run}/steps/0/lens", 400, "server.field", top=21)


def test_values_that_were_let_go_are_computed_again(models: dict[str, Model]) -> None:
    with served(limits=Limits(value=1000)) as api:
        run = api.run("pellucid/capitals", CAPITAL)
        assert not next(t for t in run["tensors"] if t["path"] == "layers.0.out")["kept"]
        document = api.get(f"/api/runs/{run['run']}/steps/0/attribution", "attribution")
        expected = attribution(models["capitals"], pellucid.trace(models["capitals"], CAPITAL), document["id"])
        assert document["total"] == expected.total


@pytest.mark.parametrize(("name", "part"), [("capitals-llama", "layers.1.attn"), ("capitals-deepseek", "layers.3.attn")])
def test_turns_are_the_ones_that_ran(api: Served, models: dict[str, Model], name: str, part: str) -> None:
    """cos and sin are those of the model's op, rotated numbers those of the record, and a score is their dot product."""
    run, trace = api.run(f"pellucid/{name}", CAPITAL, new=2), pellucid.trace(models[name], CAPITAL, 2)
    module: Any = models[name].module.get_submodule(part)
    rope: Rope = getattr(module, "rope", None) or module.spec.rope
    cos, sin = (t[0, :, 0] for t in angles(torch.arange(6)[None], rope, torch.float32))
    q = torch.cat([s.value for s in trace.all(f"{part}.q_rot")], 1)[0]
    keys = f"{part}.k_rot" if f"{part}.k_rot" in trace else f"{part}.k_shared"
    k = torch.cat([s.value for s in trace.all(keys)], 1)[0]
    for query, key, head in ((4, 1, 3), (5, 2, 0), (0, 0, 2)):
        turns = api.get(f"/api/runs/{run['run']}/turns", "turns", part=part, query=query, key=key, head=head)
        mine, other = q[query, head], k[key, head // 2] if k.ndim == 3 else k[key]
        assert len(turns["pairs"]) == rope.width // 2
        for i, p in enumerate(turns["pairs"]):
            assert p["channels"] == ([2 * i, 2 * i + 1] if rope.interleaved else [i, i + rope.width // 2])
            assert p["frequency"] == pytest.approx(rope.theta ** (-2 * i / rope.width), rel=1e-12)
            assert p["turn"] == [[float(cos[n, i]), float(sin[n, i])] for n in (query, key)]
            assert torch.allclose(torch.tensor(p["angles"]).cos(), torch.tensor([t[0] for t in p["turn"]]), atol=1e-6)
            assert p["after"] == [[float(x[c]) for c in p["channels"]] for x in (mine, other)]
        assert turns["total"] == pytest.approx(float(mine.double() @ other.double()), abs=1e-12)
        if name == "capitals-llama":  # all channels turn, so that their sum is the score but for its scale
            score = trace.all(f"{part}.scores")[query // 5].value[0, head, query if query < 5 else 0, key]
            assert turns["total"] * module.scale == pytest.approx(float(score), abs=1e-5)
    api.wrong(f"/api/runs/{run['run']}/turns", 404, "server.turns", part="layers.1.ffn", query=0, key=0, head=0)
    api.wrong(f"/api/runs/{run['run']}/turns", 404, "server.turns", part=part, query=6, key=0, head=0)
    api.wrong(f"/api/runs/{run['run']}/turns", 400, "server.field", part=part, query=0, key=0, head=4)
    api.wrong(f"/api/runs/{run['run']}/turns", 400, "server.field", part=part, query=-1, key=0, head=0)
    with swapped(
        rotary, "channels", lambda rope: [(i, i + 1) for i in range(rope.width // 2)]
    ):  # the mutant pairs what does not turn together
        wrong = api.get(f"/api/runs/{run['run']}/turns", "turns", part=part, query=4, key=1, head=3)
        assert wrong["total"] != pytest.approx(float(q[4, 3].double() @ (k[1, 1] if k.ndim == 3 else k[1]).double()), abs=1e-6)


def test_angles_that_go_by_the_length_of_a_text(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a run to 6 tokens, with a scaling that grows from 4, the angles are of the whole text's length."""
    loaded = api.session.registry["pellucid/capitals-llama"]
    part: Any = loaded.module.layers[0].attn
    monkeypatch.setattr(part, "rope", Rope(part.rope.width, part.rope.theta, scaling=Dynamic(2.0, 4)))
    run = api.run("pellucid/capitals-llama", CAPITAL)["run"]
    turns = api.get(f"/api/runs/{run}/turns", "turns", part="layers.0.attn", query=4, key=3, head=0)
    assert turns["scaling"] == "Dynamic"
    for p in turns["pairs"]:
        assert torch.allclose(torch.tensor(p["angles"]).sin(), torch.tensor([t[1] for t in p["turn"]]), atol=1e-6)
    slow = turns["pairs"][-1]["frequency"]
    assert slow < 0.9 * 10_000 ** (-(part.rope.width - 2) / part.rope.width)


def test_masks_are_what_queries_see(api: Served) -> None:
    at = torch.arange(5)
    for name in (*ALL, "capitals-bert"):
        run = api.run(f"pellucid/{name}", CAPITAL)
        patterns = [t for t in run["tensors"] if t["path"].endswith(".pattern")]
        assert {t["path"].removesuffix(".pattern") for t in patterns} == set(run["masks"])
        for t in patterns:
            s, value = run["masks"][t["path"].removesuffix(".pattern")], api.tensor(run["run"], t["n"])[0]
            q, k = torch.arange(t["shape"][2])[:, None], torch.arange(t["shape"][3])[None]
            allowed = (k <= q) | (k < s["until"]) if s["causal"] else (k == k) & (q == q)
            seen = value[0] > 0  # what may be seen can still be too little for float32, so that a 0 does not tell
            assert not (seen & ~allowed).any() and (name == "capitals-t5" or bool((seen == allowed).all())), (name, t["path"])
            assert s["source"] == t["path"].endswith(".cross.pattern")
    module: Any = api.session.registry["pellucid/capitals"].module.layers[1].attn
    with swapped(module, "limits", [window(3)]):
        mask = api.run("pellucid/capitals", CAPITAL)["masks"]["layers.1.attn"]
        assert mask == {
            "causal": True,
            "window": 3,
            "chunk": None,
            "until": 0,
            "source": False,
            "chosen": None,
            "fill": None,
            "around": False,
        }
        seen = module.mask(Step.plain(at[None])).materialize(at[None], at[None])[0][0, 0]
        assert torch.equal(seen, (at[None] <= at[:, None]) & (at[:, None] - at[None] < mask["window"]))
        both = (prefix(4) & window(3)).allowed
        assert torch.equal(both(at[:, None], at[None]), ((at[None] <= at[:, None]) | (at[None] < 4)) & (at[:, None] - at[None] < 3))


def test_routers_tell_their_groups(api: Served) -> None:
    run = api.run("pellucid/capitals-deepseek", CAPITAL)
    assert set(run["routings"]) == {f"layers.{i}.ffn" for i in (1, 2, 3)}
    routing = run["routings"]["layers.2.ffn"]
    assert routing == {"experts": 8, "chosen": 2, "groups": 4, "groups_chosen": 2, "group_best": 2, "corrected": True, "shared": 64}
    assert api.run("pellucid/capitals", CAPITAL)["routings"] == {}


def reuse(api: Served, run: str, **body: Any) -> dict[str, Any]:
    reply = api.client.post(f"/api/runs/{run}/reuse", json=body)
    assert reply.status_code == 200, reply.text
    return judge(reply.json(), "reuse")


def test_what_of_a_cache_serves_is_what_an_engine_finds(api: Served, models: dict[str, Model]) -> None:
    """The reused rows are those that an engine finds in its cache when it runs both prompts."""
    run, model = api.run("pellucid/capitals", CAPITAL), models["capitals"]
    for text, same in ((JAPAN, 3), (CAPITAL, 5), ("A capital", 0), (f"{CAPITAL} Paris", 5)):
        reused = reuse(api, run["run"], prompt=text)
        assert (reused["ids"], reused["same"]) == (model.ids(text), same)
        for page in reused["pages"]:
            engine = Engine.of(model.module, 256, SchedulerLimits(64, 1), page["size"])
            for ids in (run["ids"], reused["ids"]):
                engine.submit(Request(tuple(ids), 1))
                list(engine.outputs())
            assert engine.storage.cache is not None and engine.storage.cache.hits == page["reused"]  # type: ignore[attr-defined]
        assert [p["size"] for p in reused["pages"]] == [1, PAGE]
        assert reused["pages"][0]["reused"] == min(same, len(reused["ids"]) - 1)  # one token is always left to compute
    long = api.run("pellucid/capitals", run["ids"] * 11)
    assert reuse(api, long["run"], ids=[*long["ids"][:-1], 7])["pages"] == [{"size": 1, "reused": 54}, {"size": PAGE, "reused": 0}]


def test_rows_that_serve_are_the_same_to_the_bit(api: Served) -> None:
    """Both prompts store the same bits in the reused rows, and others after them."""
    runs = [api.run("pellucid/capitals", text) for text in (CAPITAL, JAPAN)]
    kept = reuse(api, runs[0]["run"], prompt=JAPAN)["pages"][0]["reused"]
    for path in ("layers.0.attn.k", "layers.3.attn.k", "layers.3.attn.v"):
        a, b = (api.tensor(r["run"], next(t["n"] for t in r["tensors"] if t["path"] == path))[0][0] for r in runs)
        assert torch.equal(a[:kept], b[:kept]) and not torch.equal(a[kept], b[kept])


def test_models_whose_cache_depends_on_more(api: Served) -> None:
    run = api.run("pellucid/capitals-prefix", CAPITAL)["run"]
    assert all(p["reused"] == 0 for p in reuse(api, run, prompt=CAPITAL)["pages"])  # a prefix sees what comes after it
    run = api.run("pellucid/capitals-t5", CAPITAL)["run"]
    assert all(p["reused"] == 0 for p in reuse(api, run, prompt=JAPAN)["pages"])  # another source
    run = api.run("pellucid/capitals-bert", CAPITAL)["run"]
    wrong = api.client.post(f"/api/runs/{run}/reuse", json={"prompt": JAPAN})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "server.past")
    for body in ({}, {"prompt": JAPAN, "ids": [1]}, {"ids": [-1]}, {"prompt": JAPAN, "new": 1}):
        assert api.client.post(f"/api/runs/{run}/reuse", json=body).status_code == 400


def differ(api: Served, a: str, b: str) -> dict[str, dict[str, Any]]:
    return {t["path"]: t for t in api.get(f"/api/runs/{a}/differences", "differences", other=b)["tensors"]}


def test_what_differs_is_every_number(api: Served, models: dict[str, Model]) -> None:
    first, second = (api.run("pellucid/capitals", text) for text in (CAPITAL, JAPAN))
    differences = differ(api, first["run"], second["run"])
    traces = [pellucid.trace(models["capitals"], text) for text in (CAPITAL, JAPAN)]
    assert set(differences) == set(traces[0].paths())
    for path, t in differences.items():
        a, b = (trace[path].value for trace in traces)
        assert t["changed"] == (not torch.equal(a, b)), path
        assert t["largest"] == float((a.double() - b.double()).abs().max())
    same = differ(api, first["run"], api.run("pellucid/capitals", CAPITAL)["run"])
    assert not any(t["changed"] for t in same.values())


def test_rows_and_heads_are_those_of_the_comparison(api: Served, models: dict[str, Model]) -> None:
    """Row by row and head by head as `try --by` has them; each cell is the one that differs most; a head that is off moves alone."""
    change = "layers.1.attn.z[H=2] = 0"
    base, changed = api.run("pellucid/capitals", CAPITAL), api.run("pellucid/capitals", CAPITAL, changes=[change])
    document = api.get(f"/api/runs/{base['run']}/differences", "differences", other=changed["run"])
    model = models["capitals"]
    compared = pellucid.compare(
        pellucid.trace(model, CAPITAL), pellucid.trace(model, CAPITAL, edit=[pellucid.zero("layers.1.attn.z", H=2)])
    )
    own = {axis: along(compared, axis) for axis in "TH"}
    got = {(d["path"], d["axis"]): d for d in document["along"]}
    assert set(got) == {(f"layers.{i}{end}", axis) for i in range(4) for end, axis in ((".out", "T"), (".attn.z", "H"))}
    for (path, axis), d in got.items():
        assert d["shares"] == pytest.approx(own[axis][path], rel=1e-9, abs=1e-12)
        a, b = (run[path].value.double() for run in (compared.a, compared.b))
        for i, cell in enumerate(d["cells"]):
            at = 1 if axis == "T" else 2
            assert cell[at] == i and float((b - a).abs()[tuple(cell)]) == float((b - a).abs().select(at, i).max())
    assert [share > 0 for share in got["layers.1.attn.z", "H"]["shares"]] == [False, False, True, False]


def test_what_measures_cannot_tell_apart_differs(api: Served) -> None:
    """Two swapped cells are a difference although minimum, mean and maximum stay."""
    base = api.run("pellucid/capitals", CAPITAL)
    swap = [f'layers.1.out[0, 4, {i}] = from "{CAPITAL}" [0, 4, {j}]' for i, j in ((1, 2), (2, 1))]
    changed = api.run("pellucid/capitals", CAPITAL, changes=swap)
    stats = [next(t["stats"] for t in r["tensors"] if t["path"] == "layers.1.out") for r in (base, changed)]
    assert stats[0] == pytest.approx(stats[1], abs=1e-12)
    changes = differ(api, base["run"], changed["run"])
    assert changes["layers.1.out"]["changed"] and changes["layers.1.out"]["largest"] > 0 and not changes["layers.0.out"]["changed"]


def test_tensors_that_are_not_kept_differ_with_what_made_them() -> None:
    """Without values a change marks the tensors after it, and none before it."""
    with served(limits=Limits(value=1, tables=0)) as api:
        base = api.run("pellucid/capitals", CAPITAL)
        assert not any(t["kept"] for t in base["tensors"] if t["path"].startswith("layers"))
        edited = api.run("pellucid/capitals", CAPITAL, changes=["layers.1.attn.z[0, :, 1, :] = 0"])
        differences = differ(api, base["run"], edited["run"])
        marks = {path: t["changed"] for path, t in differences.items()}
        assert all(t["largest"] is None for path, t in differences.items() if path.startswith("layers"))
        assert marks["layers.1.attn.z"] and marks["layers.1.out"] and marks["layers.3.attn.scores"] and marks["logits"]
        assert not marks["layers.1.attn.q"] and not marks["layers.0.out"] and not marks["layers.1.attn.scores"]
        with swapped(run_difference, "unlike", lambda *arguments: False):  # the mutant: what is not measured has not changed
            assert not differ(api, base["run"], edited["run"])["layers.1.out"]["changed"]


def test_two_models_and_two_lengths(api: Served) -> None:
    a, b = api.run("pellucid/capitals", CAPITAL), api.run("pellucid/capitals-llama", CAPITAL)
    differences = differ(api, a["run"], b["run"])
    assert differences["embed"]["changed"] and differences["layers.0.attn.pattern"]["largest"] > 0
    assert "positions" not in differences
    long = api.run("pellucid/capitals", f"{CAPITAL} Paris")
    differences = differ(api, a["run"], long["run"])
    assert differences["embed"]["changed"] and differences["embed"]["largest"] is None
    api.wrong(f"/api/runs/{a['run']}/differences", 404, "server.run", other="0" * 32)
    api.wrong(f"/api/runs/{a['run']}/differences", 404, "server.run")


def test_a_difference_is_sent_like_a_tensor(api: Served) -> None:
    a, b = api.run("pellucid/capitals", CAPITAL), api.run("pellucid/capitals", JAPAN)
    n = next(t["n"] for t in a["tensors"] if t["path"] == "layers.2.mid")
    values = [api.tensor(r["run"], n)[0] for r in (a, b)]
    difference, about = api.tensor(a["run"], f"{n}/difference", other=b["run"], m=n)  # type: ignore[arg-type]
    assert torch.equal(difference, (values[1].double() - values[0].double()).float()) and about["path"] == "layers.2.mid"
    pooled, _ = api.tensor(a["run"], f"{n}/difference", other=b["run"], m=n, at="0,:,:", level=7)  # type: ignore[arg-type]
    assert pooled.numel() == 1 and float(pooled.abs()) == float(difference.abs().max())
    long = api.run("pellucid/capitals", f"{JAPAN} Tokyo")  # of unequal lengths the rows that both have
    rows, _ = api.tensor(a["run"], f"{n}/difference", other=long["run"], m=n, at="0,0:5,:", level="0,30")  # type: ignore[arg-type]
    assert torch.equal(rows[:, 0].abs() > 0, torch.tensor([False, False, False, True, True])) and rows.shape == (5, 1)
    api.wrong(f"/api/runs/{a['run']}/tensors/{n}/difference", 400, "server.patch", other=long["run"], m=n)
    api.wrong(f"/api/runs/{a['run']}/tensors/{n}/difference", 400, "server.patch", other=b["run"], m=b["steps"][0]["count"] - 1)
    api.wrong(f"/api/runs/{a['run']}/tensors/{n}/difference", 404, "server.tensor", other=b["run"], m=100_000)


def test_a_recorded_run_alone_tells_no_more_than_it_holds(tmp_path: Any) -> None:
    trace = pellucid.trace(pellucid.load("pellucid/capitals"), CAPITAL)
    trace.model = "gone"
    trace.save(tmp_path / "trace")
    with served(str(tmp_path / "trace")) as api:
        run = api.client.get("/api/models").json()["run"]
        document = api.get(f"/api/runs/{run}", "run")
        assert (document["masks"], document["routings"]) == ({}, {})
        api.wrong(f"/api/runs/{run}/steps/0/lens", 400, "server.alone")
        api.wrong(f"/api/runs/{run}/steps/0/attribution", 400, "server.alone")
        api.wrong(f"/api/runs/{run}/turns", 400, "server.alone", part="layers.0.attn", query=0, key=0, head=0)
        assert not any(t["changed"] for t in api.get(f"/api/runs/{run}/differences", "differences", other=run)["tensors"])
