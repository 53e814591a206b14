"""The page's bills are the Python API's: ranks, training and price, reasons of numbers, single tensors, one setting over its range."""

import json
import re
from typing import Any

import pytest
import torch

import pellucid
from documented import accept
from pellucid import catalog
from pellucid.api.count import described
from pellucid.counting.formats import DTYPES
from pellucid.counting.meta_run import meta_model
from pellucid.counting.ranks import Split, pace, split_of, spread
from pellucid.counting.training_memory import Way, training
from pellucid.counting.weights import weights
from pellucid.documents import count, count_formulas
from pellucid.runs.limits import Limits
from pellucid.server import bills
from served import Served, judge, served

V3: dict[str, Any] = {"context": 131072, "batch": 8, "dtype": "fp8", "cache": "bfloat16", "device": "h200"}
ASKED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("deepseek-v3", V3, {"ranks": "ep=8", "price": 3.5}),
    ("llama-3.1-70b", {"context": 2048, "device": "h100"}, {"ranks": "tp=4,pp=2"}),
    ("gpt2-small", {"context": 64, "batch": 2}, {"train": True}),
    ("gpt2-small", {"context": 64}, {"lora": 8, "recompute": True, "shards": 2}),
    ("t5-small", {"context": 64, "device": "h100"}, {"ranks": "tp=2", "price": 1, "train": True}),
    ("pellucid/capitals", {"context": 30, "device": "h100"}, {"ranks": "pp=2"}),
]


def fetch_bill(api: Served, name: str, how: dict[str, Any], viewed: dict[str, Any]) -> dict[str, Any]:
    """Return a bill's document, which its schema accepts."""
    given = {k: str(v).lower() if isinstance(v, bool) else v for k, v in {**how, **viewed}.items()}
    reply = api.client.get("/api/count", params={"model": name, **given})
    assert reply.status_code == 200, reply.text
    document: dict[str, Any] = reply.json()
    accept({k: v for k, v in document.items() if k != "formulas"}, "count")
    return document


@pytest.mark.parametrize(("name", "how", "viewed"), ASKED)
@pytest.mark.quick(4)
def test_what_is_asked_beside_a_bill_is_the_commands(api: Served, name: str, how: dict[str, Any], viewed: dict[str, Any]) -> None:
    document = fetch_bill(api, name, how, viewed)
    formulas = judge(document.pop("formulas"), "formulas")
    bill = pellucid.count(name, **how)
    scenario = count.scenario(how.get("device"), **viewed)
    assert document == json.loads(json.dumps(count.document(bill, scenario)))
    if "training" in document:
        way = Way(viewed.get("lora"), viewed.get("recompute", False), viewed.get("shards", 1))
        assert {k: v["value"] for k, v in document["training"].items()} == {k: int(n) for k, n in training(bill, way).items()}
    if "ranks" in document:
        split = split_of(viewed["ranks"])
        for one, stage in zip(document["ranks"]["stages"], spread(bill, split).stages, strict=True):
            assert (one["parameters"], one["weights"], one["cache"]) == (stage.parameters, stage.weights, stage.cache)
        assert ends(document, formulas) == []
        if "bounds" in document["ranks"]:
            assert (" ≤ " in formulas["ranks.bounds.fits"]) == document["ranks"]["bounds"]["fits"]
            assert document["bounds"].keys() == {"device", "memory"} and not any(path.startswith("bounds.") for path in formulas)


def ends(document: dict[str, Any], formulas: dict[str, str]) -> list[str]:
    """Return the paths of ranks' and prices' numbers whose formula does not end in them."""
    wrong = []
    for path, text in formulas.items():
        if not re.match(r"ranks\.|bounds\..*price", path) or path.endswith("fits"):
            continue
        value: Any = document
        for word in path.split("."):
            value = value[int(word) if isinstance(value, list) else word]
        figure = f"{value:.4g}" if isinstance(value, float) else f"{value:,}"
        wrong += [] if re.search(rf"= {re.escape(figure)}( s)?$", text) else [path]
    return wrong


def test_formulas_of_ranks_see_another_number(monkeypatch: pytest.MonkeyPatch) -> None:
    bill, scenario = pellucid.count("gpt2-small", device="h100"), count.scenario("h100", 2.0, ranks="tp=2")
    document = count.document(bill, scenario)
    assert ends(document, count_formulas.formulas(bill, scenario)) == []
    monkeypatch.setattr(count_formulas, "pace", lambda bill, split, phase, device: pace(bill, Split(), phase, device))
    assert "ranks.bounds.decode.tokens_per_second" in ends(document, count_formulas.formulas(bill, scenario))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"ranks": "tp=5", "context": 8}, "count.ranks.even"), ({"ranks": "x"}, "count.ranks"), ({"ranks": ""}, "count.ranks"),
    ({"ranks": "pp=99", "context": 8}, "count.ranks.layers"), ({"price": "1"}, "count.price.device"), ({"price": "-1"}, "server.field"),
    ({"price": "1e999", "device": "h100"}, "server.field"), ({"price": "9" * 12, "device": "h100"}, "count.price.device"),
    ({"lora": "0"}, "count.number"), ({"shards": "0"}, "count.number"), ({"lora": "1.5"}, "server.field"), ({"train": "1"}, "server.field"),
    ({"recompute": "yes"}, "server.field"), ({"lora": str(2**21)}, "count.number"), ({"ranks": "tp=4,ep=6"}, "count.ranks.together"),
]  # fmt: skip


@pytest.mark.parametrize(("how", "code"), REFUSED)
def test_what_cannot_be_is_one_line(api: Served, how: dict[str, Any], code: str) -> None:
    error = api.wrong("/api/count", 400, code, model="gpt2-small", **how)
    assert "\n" not in error["message"] and len(error["message"]) < 300


def test_reasons_lead_to_single_tensors(api: Served) -> None:
    """Every number in a formula has a formula of its own, down to products of the config's fields."""
    bill, seen = pellucid.count("deepseek-v3", context=1024), set[str]()

    def walk(path: str) -> int:
        document = api.get("/api/count/why", "why", model="deepseek-v3", context=1024, path=path)
        first, *rest = document["why"]
        assert first == {"path": path, "value": bill[path].value, "formula": bill[path].formula}
        assert [r["path"] for r in rest] == [p for p in bill[path].of if p in bill]
        seen.add(path)
        return sum(walk(r["path"]) for r in rest if r["path"] not in seen and path.count("layers.3") < 2) + 1

    assert walk("parameters.total") > 20 and "parameters.layers.3.attn.q_b.weight" in seen
    last = bill["parameters.layers.3.attn.q_b.weight"].formula
    assert last == "(H·K + H·R)·Q = 24,576·1,536 = 37,748,736" or "1,536" in last
    walk("cache.bytes_per_token")
    assert "cache.layers.3.attn" in seen
    api.wrong("/api/count/why", 400, "count.path", model="gpt2-small", path="parameters.nix")
    api.wrong("/api/count/why", 404, "server.counted", model="/etc/passwd", path="parameters.total")


def test_a_name_of_the_catalogue_is_found_as_the_terminal_finds_it(api: Served) -> None:
    """By its alias and other spellings; another name is refused with those near it."""
    names = "gpt2-small", "gpt2", "GPT-2 Small"
    numbers = [api.client.get("/api/count", params={"model": name}).json()["parameters"]["total"] for name in names]
    assert numbers == [pellucid.count("gpt2")["parameters.total"].value] * 3
    refused = api.wrong("/api/count", 404, "server.counted", model="gpt2-smal")
    assert "near it: gpt2-small" in str(refused) and "pellucid/capitals" in str(refused)


@pytest.mark.parametrize("name", ["deepseek-v3", "t5-small", "gpt-oss-20b", "pellucid/capitals"])
def test_every_single_tensor_is_listed(api: Served, name: str) -> None:
    """The document lists every tensor of the model with its shape, and their numbers add up to the bill."""
    counted = api.get("/api/count/weights", "counted", model=name)["weights"]
    bill, every = pellucid.count(name), {w.path: w for w in weights(meta_model(described(name)[1], torch.bfloat16))}
    single = {}
    for w in counted:
        for n in [None] if w["layers"] is None else w["layers"]:
            path = w["path"] if n is None else re.sub(r"layers\.\d+", f"layers.{n}", w["path"], count=1)
            single[path] = tuple(w["shape"])
        assert w["formulas"]["count"].endswith(f"{w['count']:,}") and w["formulas"]["bytes"].endswith(f"{w['bytes']:,}")
    assert single == {path: w.shape for path, w in every.items()}
    assert sum(w["times"] * w["count"] for w in counted if w["parameter"]) == int(bill["parameters.total"])
    assert sum(w["times"] * w["bytes"] for w in counted) == int(bill["bytes.total"])
    parts: dict[str, int] = {}
    for w in counted:
        parts[w["part"]] = parts.get(w["part"], 0) + w["times"] * w["count"] * w["parameter"]
    assert {k: n for k, n in parts.items() if n} == {k: int(n) for k, n in bill.below("parameters.by_part")}


@pytest.mark.parametrize("along", bills.ALONG)
@pytest.mark.quick(4)
def test_points_are_bills(api: Served, along: str) -> None:
    """Every point is the Python API's own bill of that setting."""
    how: dict[str, Any] = {"context": 512, "batch": 2, "dtype": "bfloat16", "cache": "bfloat16", "device": "h100"}
    document = api.get("/api/count/along", "along", model="gpt2-small", along=along, ranks="tp=2", **how)
    ats = [p["at"] for p in document["points"]]
    ranges = {"context": [128, 256, 512, 1024], "batch": [1 << i for i in range(11)]}
    ranges |= {"dtype": list(DTYPES), "device": list(catalog.devices())}  # type: ignore[dict-item]
    assert ats == ranges[along]
    for p in document["points"]:
        bill = pellucid.count("gpt2-small", **how | {along: p["at"]})
        assert (p["cache"], p["bytes"]) == (int(bill["cache.bytes"]), int(bill["bytes.total"]))
        assert (p["prefill"], p["decode"]) == (int(bill["flops.prefill"]), int(bill["flops.decode"]))
        device = count.device_of(bill)
        assert device and (p["first"], p["next"]) == tuple(pace(bill, Split(2), phase, device).seconds for phase in ("prefill", "decode"))


def test_ranges_end_where_a_model_does(api: Served) -> None:
    def ats(name: str) -> list[int]:
        return [p["at"] for p in api.get("/api/count/along", "along", model=name, along="context")["points"]]

    positions = pellucid.load("pellucid/capitals").config.positions
    assert ats("pellucid/capitals")[-1] == positions and ats("gpt2-small")[-1] == 1024
    assert ats("deepseek-v3")[-1] == (described("deepseek-v3")[1].positions or 1 << 20)
    points = api.get("/api/count/along", "along", model="bert-base", along="context")["points"]
    assert all(p["cache"] is None and p["decode"] is None and p["first"] is None for p in points)
    api.wrong("/api/count/along", 400, "server.field", model="gpt2-small", along="layers")
    api.wrong("/api/count/along", 400, "count.ranks", model="gpt2-small", ranks="tp=0")


def test_situations_can_be_counted(api: Served) -> None:
    """Each situation names a model and a device of the catalogue, and a split that the model supports."""
    situations = api.get("/api/catalog", "catalog")["situations"]
    assert situations == list(catalog.situations().values()) and len(situations) >= 5
    for s in situations:
        how = {k: s[k] for k in ("context", "batch", "dtype", "cache", "device")}
        bill = pellucid.count(s["model"], **how)
        assert count.over(bill, Split(**s["split"]))["ranks"] == s["split"]["pp"] * max(s["split"]["tp"], s["split"]["ep"])
    first = situations[0]
    assert (first["model"], first["context"], first["device"], Split(**first["split"]).ranks) == ("deepseek-v3", 131072, "h200", 8)


def test_the_latest_bills_are_kept() -> None:
    with served(limits=Limits(bills=2)) as api:
        for context in (8, 9, 10):
            fetch_bill(api, "gpt2-small", {"context": context}, {})
        assert [dict(k[3:])["context"] for k in api.session.bills.answers] == [9, 10]


def test_a_draft(api: Served) -> None:
    """Its bill is the commands', with a formula for each number; a share without a draft, and a draft that is none, are refused."""
    how: dict[str, Any] = {"context": 512, "device": "h100"}
    made = fetch_bill(api, "qwen2.5-7b", how, {"draft": "qwen2.5-0.5b", "accepted": 0.7})
    scenario = count.scenario("h100", draft=pellucid.count("qwen2.5-0.5b", **how), accepted=0.7)
    assert made["draft"] == count.document(pellucid.count("qwen2.5-7b", **how), scenario)["draft"]
    assert "draft.held" in made["formulas"] and "draft.rows.0.tokens_per_second" in made["formulas"]
    for wrong in ({"accepted": 0.7}, {"draft": "qwen2.5-0.5b", "accepted": 2}, {"draft": "bert-base"}, {"draft": "nothing"}):
        status = api.client.get("/api/count", params={"model": "qwen2.5-7b", **how, **wrong}).status_code
        assert status == (404 if wrong.get("draft") == "nothing" else 400), wrong
