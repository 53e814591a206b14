"""Switches of a request: what runs is `pellucid.variant`'s model, the registry keeps its own, and every wrong switch is one line.

PELLUCID_FULL=1 tries every value of every switch on offer, otherwise one in five.
"""

import os
import random
from dataclasses import replace

import pytest

import pellucid
from pellucid.api.variant import varied
from pellucid.runs import execute, switched_model
from pellucid.runs.kept_run import Run
from pellucid.runs.limits import LIMITS, Limits
from pellucid.runs.memory_budget import held_by, weights_of
from pellucid.runs.worker import Stop
from pellucid.watching.records import Seen
from served import Served, judge, served

CAPITALS, PROMPT = "pellucid/capitals", "The capital of France is"
GIVEN = ["norm = none", "layers.*.attn.scale=1"]
READ = ["norm=none", "layers.*.attn.scale=1"]
FULL = bool(os.environ.get("PELLUCID_FULL"))
TINY = replace(LIMITS, value=256)  # bytes: every value is let go, and computed again


@pytest.fixture(scope="module")
def plain() -> pellucid.Model:
    return pellucid.load(CAPITALS, dtype="float32")


def differing(api: Served, document: dict, traced: pellucid.Trace) -> list[str]:  # type: ignore[type-arg]
    """Return the paths of tensors that differ in a bit from the trace's, of all steps."""
    records = {(s.step, s.path, s.call): s.value for s in traced}
    out, met = list[str](), 0
    for k in range(len(document["steps"])):
        tensors = document["tensors"] if k == 0 else api.get(f"/api/runs/{document['run']}/steps/{k}", "step")["tensors"]
        for t in tensors:
            value, _ = api.tensor(document["run"], t["n"])
            met += 1
            out += [] if value.equal(records[k, t["path"], t["call"]]) else [t["path"]]
    assert met == len(records)
    return out


def test_what_runs_is_the_variant(api: Served, plain: pellucid.Model) -> None:
    document = api.run(CAPITALS, PROMPT, new=3, **{"with": GIVEN})
    traced = pellucid.trace(varied(plain, GIVEN), PROMPT, 3)
    assert differing(api, document, traced) == [] and document["new"] == traced.new
    assert (document["model"], document["switches"]) == (CAPITALS, READ)
    assert differing(api, api.run(CAPITALS, PROMPT, new=3), pellucid.trace(plain, PROMPT, 3)) == []  # the registry's is as it was


def test_values_that_are_computed_again_are_the_variants(plain: pellucid.Model) -> None:
    with served(limits=TINY) as api:
        document = api.run(CAPITALS, PROMPT, new=2, **{"with": GIVEN})
        assert not any(t["kept"] for t in document["tensors"] if t["path"] == "layers.2.out")
        assert differing(api, document, pellucid.trace(varied(plain, GIVEN), PROMPT, 2)) == []


def test_the_registrys_model_would_be_found_out(plain: pellucid.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: a run computes its values again by the model without switches."""
    own = execute.recomputed

    def wrong(run: Run, s: Seen, stop: Stop) -> Seen:
        assert run.loaded is not None
        with monkeypatch.context() as patch:
            patch.setattr(run, "loaded", run.loaded.plain)
            return own(run, s, stop)

    monkeypatch.setattr(execute, "recomputed", wrong)
    with served(limits=TINY) as api:
        document = api.run(CAPITALS, PROMPT, new=2, **{"with": GIVEN})
        assert "layers.2.out" in differing(api, document, pellucid.trace(varied(plain, GIVEN), PROMPT, 2))


@pytest.mark.parametrize("limits", [LIMITS, TINY])
def test_terms_sum_to_the_variants_cell(plain: pellucid.Model, limits: Limits) -> None:
    with served(limits=limits) as api:
        document = api.run(CAPITALS, PROMPT, **{"with": GIVEN})
        traced = pellucid.trace(varied(plain, GIVEN), PROMPT)
        for path in ("layers.1.attn.q", "layers.1.attn.scores", "layers.3.ffn", "logits"):
            (n,) = (t["n"] for t in document["tensors"] if t["path"] == path)
            value = traced[path].value
            at = [size - 1 for size in value.shape]
            terms = api.client.get(f"/api/runs/{document['run']}/tensors/{n}/terms", params={"cell": ",".join(map(str, at))}).json()
            assert terms["total"] == pytest.approx(float(value[tuple(at)]), rel=1e-4, abs=1e-5)


def test_lens_and_attribution_read_the_variant(api: Served, plain: pellucid.Model) -> None:
    document = api.run(CAPITALS, PROMPT, **{"with": ["norm=none"]})
    value = float(pellucid.trace(varied(plain, ["norm=none"]), PROMPT)["logits"].value[0, -1, document["new"][0]])
    place = f"/api/runs/{document['run']}/steps/0"
    shares = api.get(f"{place}/attribution", "attribution", id=document["new"][0])
    assert shares["value"] == pytest.approx(value, rel=1e-5) and shares["total"] == pytest.approx(value, rel=1e-4)
    assert api.get(f"{place}/lens", "lens", id=document["new"][0])["layers"][-1]["followed"]["logit"] == pytest.approx(value, rel=1e-5)


def test_a_rotary_angle_is_the_variants(api: Served) -> None:
    documents = [api.run("pellucid/capitals-llama", PROMPT, **{"with": w}) for w in ([], ["layers.*.attn.rope.theta=100"])]
    query = {"part": "layers.0.attn", "query": 4, "key": 1, "head": 0, "step": 0}
    first, second = (api.get(f"/api/runs/{d['run']}/turns", "turns", **query) for d in documents)
    assert first != {**second, "run": first["run"]}


def test_two_switches_are_not_alike(api: Served) -> None:
    """Values that are not kept are taken for the same only if the models are."""
    runs = [api.run(CAPITALS, PROMPT, **{"with": w})["run"] for w in ([], ["norm=none"], ["norm=none"], ["norm=rms"])]
    kept = [api.session.runs[r].loaded for r in runs]
    assert [switched_model.alike(kept[1], k) for k in kept] == [False, True, True, False]
    same = api.get(f"/api/runs/{runs[1]}/differences", "differences", other=runs[2])["tensors"]
    assert same and not any(t["changed"] for t in same)
    differ = api.get(f"/api/runs/{runs[0]}/differences", "differences", other=runs[1])["tensors"]
    assert {t["path"] for t in differ if not t["changed"]} == {"embed", "positions", "start"}


def test_weights_are_shared_and_those_that_were_made_are_counted_once(api: Served) -> None:
    registry = weights_of(api.session.registry[CAPITALS].module)
    for switch, made in (("norm=none", False), ("layers.*.attn.kv_heads=2", True), ("layers.*.ffn.up.rank=8", True)):
        run = api.session.runs[api.run(CAPITALS, PROMPT, **{"with": [switch]})["run"]]
        assert run.loaded is not None and run.model is not None
        own = weights_of(run.loaded.module) - registry
        assert set(run.made) == own and bool(own) == made
        assert own <= set(run.memory) and not registry & set(run.memory)
        sizes = held_by(p.detach() for p in run.loaded.module.parameters() if p.untyped_storage().data_ptr() in own)
        assert sum(run.made.values()) == sum(sizes.values())


def test_a_weight_that_was_made_is_read_from_the_run(api: Served, plain: pellucid.Model) -> None:
    document, path = api.run(CAPITALS, PROMPT, **{"with": ["layers.*.attn.kv_heads=2"]}), "layers.0.attn.k.weight"
    query = {"model": CAPITALS, "path": path}
    full, _ = api.values("/api/weights/tensor", **query)
    pooled, _ = api.values("/api/weights/tensor", run=document["run"], **query)
    made = varied(plain, ["layers.*.attn.kv_heads=2"]).module.get_parameter(path)
    assert pooled.equal(made) and full.shape[0] == 2 * pooled.shape[0]
    rows = api.client.get("/api/weights", params={"model": CAPITALS, "run": document["run"]}).json()["weights"]
    assert next(r["shape"] for r in rows if r["path"] == path) == list(made.shape)
    stats = api.client.get("/api/weights/tensor/stats", params={"run": document["run"], **query}).json()["stats"]
    assert stats["max"] == pytest.approx(float(made.max()))


@pytest.mark.parametrize(
    ("given", "code", "word"),
    [
        ("norm=none", "server.field", "with"),
        ([3], "server.field", "with[0]"),
        ([""], "variant.text", "NAME=VALUE"),
        (["norm"], "variant.text", "norm"),
        (["norm=nonsense"], "variant.value", "layer"),
        (["norn=none"], "variant.field", "norm"),
        (["layers.*.attn.qk_norm=on"], "variant.weight", "q_norm"),
        (["layers.*.ffn.up.rank=0"], "variant.value", "128"),
        (["norm=" + "n" * 200], "server.field", "200"),
        (["norm=none"] * 17, "server.field", "16"),
    ],
)
def test_a_wrong_switch_is_one_line(api: Served, given: object, code: str, word: str) -> None:
    reply = api.client.post("/api/runs", json={"model": CAPITALS, "prompt": PROMPT, "with": given})
    error = judge(reply.json(), "error")["error"]
    assert (reply.status_code, error["code"]) == (400, code) and "\n" not in error["message"] and word in error["message"], error


def test_a_catalogue_entry_has_no_switches() -> None:
    with served("llama-3-8b") as api:
        reply = api.client.post("/api/runs", json={"model": "llama-3-8b", "ids": [1, 2], "with": ["norm=none"]})
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "server.switch")
        assert api.get("/api/switches", "switches", model="llama-3-8b")["switches"] == []


@pytest.mark.parametrize("name", [CAPITALS, "pellucid/capitals-deepseek", "pellucid/capitals-t5", "pellucid/capitals-bert"])
@pytest.mark.quick(4)
def test_every_switch_on_offer_runs_or_is_refused_in_one_line(api: Served, name: str) -> None:
    offered = api.get("/api/switches", "switches", model=name)["switches"]
    assert {"norm", "layers.*.attn.scale", "layers.*.order"} <= {s["path"] for s in offered} and len(offered) < 100
    (norm,) = (s for s in offered if s["path"] == "norm")
    assert norm["listed"] and set(norm["values"]) < set(norm["allowed"]) and "none" in norm["allowed"]
    prompt = PROMPT + (" ___." if name.endswith("bert") else "")
    texts = [f"{s['path']}={value}" for s in offered for value in values_of(s)]
    chosen = texts if FULL else random.Random(name).sample(texts, len(texts) // 5)
    ran = 0
    for text in chosen:
        reply = api.client.post("/api/runs", json={"model": name, "prompt": prompt, "with": [text]})
        assert reply.status_code in (200, 400), (text, reply.text)
        ran += reply.status_code == 200
        assert reply.status_code == 200 or "\n" not in reply.json()["error"]["message"]
    assert ran > len(chosen) // 6


def values_of(offered: dict) -> list[str]:  # type: ignore[type-arg]
    """Return the values to try of a switch: all that are listed, else some that are allowed and some that are not."""
    words = [w for w in offered["allowed"] if "…" not in w and not w.startswith("float")]
    return [*words, *([] if offered["listed"] else ["0", "2", "-1", "0.5", "2147483647", "1e308", "nan"])]


def test_the_engines_and_their_caches_stay_apart(plain: pellucid.Model) -> None:
    other = varied(plain, ["norm=none"])
    assert plain.generate(PROMPT, 2) == plain.generate(PROMPT, 2) != other.generate(PROMPT, 2)
    assert not {id(e) for e in plain.engines} & {id(e) for e in other.engines}
