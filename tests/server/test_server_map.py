"""A run on one screen: its document for every kind of model is bounded, and tokens that a request forces are taken."""

from pathlib import Path

import pytest
import torch

from judge import judge
from pellucid.api.model import make
from pellucid.documents.run_map import CELLS, EDGES, LEAST, block_of, map_document, records
from pellucid.runs.limits import LIMITS
from pellucid.runs.request import RunRequest
from pellucid.runs.worker import Stop
from pellucid.server.session import Session
from served import Served

PROMPT = "The capital of France is"
DEEP = {
    "model_type": "gpt2",
    "vocab_size": 64,
    "n_embd": 8,
    "n_head": 1,
    "n_layer": 61,
    "n_positions": 4096,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


@pytest.mark.parametrize("name", ["capitals", "capitals-deepseek", "capitals-t5", "capitals-bert", "capitals-prefix"])
@pytest.mark.quick(4)
def test_the_map_has_the_rows_of_every_step(api: Served, name: str) -> None:
    prompt, new = ("The capital of [MASK] is Paris.", 1) if name.endswith("bert") else (PROMPT, 3)
    run = api.run(f"pellucid/{name}", prompt, new=new)
    until = api.get(f"/api/runs/{run['run']}/steps/{new - 1}/map", "map")
    last = until["stacks"][-1]
    own = run["ids"] if name != "capitals-t5" else run["steps"][0]["fed"]
    assert [row["id"] for row in last["rows"]] == [*own, *run["new"][: new - 1]]
    assert all(len(b["norms"]) == len(last["rows"]) == len(b["feed"]) for b in last["blocks"])
    assert [row["step"] for row in last["rows"]] == [0] * len(own) + list(range(1, new))
    before = api.get(f"/api/runs/{run['run']}/steps/0/map", "map")["stacks"][-1]
    for one, then in zip(before["blocks"], last["blocks"], strict=True):  # rows of earlier steps stay
        assert then["norms"][: len(one["norms"])] == one["norms"]


def test_forced_tokens_are_taken(api: Served) -> None:
    run = api.run("pellucid/capitals", PROMPT, new=2, forced={"0": 308})
    plain = api.run("pellucid/capitals", PROMPT)
    assert run["new"][0] == 308 != plain["new"][0] and run["forced"] == {"0": 308} and plain["forced"] == {}
    alone = api.run("pellucid/capitals", [*run["ids"], 308])
    assert alone["new"][0] == run["new"][1]


@pytest.mark.parametrize("forced", [{"2": 5}, {"0": -1}, {"0": 1 << 20}, {"x": 1}, [1], {"0": True}])
def test_wrong_forced_tokens_are_refused_in_a_line(api: Served, forced: object) -> None:
    body = {"model": "pellucid/capitals", "prompt": PROMPT, "new": 2, "forced": forced}
    answer = api.client.post("/api/runs", json=body)
    assert answer.status_code == 400 and "forced" in answer.json()["error"]["message"] and "\n" not in answer.json()["error"]["message"]


def test_a_long_text_in_many_blocks_is_bounded(tmp_path: Path) -> None:
    made = make(DEEP, dtype=torch.float32)
    for p in made.module.parameters():
        p.data.normal_(0, 0.3, generator=torch.Generator().manual_seed(0))
    made.save(tmp_path / "deep")
    session = Session(str(tmp_path / "deep"), LIMITS)
    document = session.new_run(RunRequest(str(tmp_path / "deep"), None, tuple(i % 64 for i in range(1500))), Stop())
    (stack,) = map_document(session.runs[document["run"]], 0, Stop())["stacks"]
    assert len(stack["blocks"]) == 61 and LEAST <= len(stack["rows"]) <= CELLS // 61
    assert sum(row["count"] for row in stack["rows"]) == 1500
    assert sum(len(b["edges"]) for b in stack["blocks"]) <= EDGES
    value = session.runs[document["run"]].trace["layers.60.out"].value[0].double().norm(dim=-1)
    first = stack["rows"][0]["count"]
    assert stack["blocks"][60]["norms"][0] == pytest.approx(float(value[:first].mean()), rel=1e-6)


def test_shapes_alone_have_no_number(api: Served) -> None:
    session = Session("llama-2-7b", LIMITS)
    document = session.new_run(RunRequest("llama-2-7b", None, (0, 1, 2)), Stop())
    bare = map_document(session.runs[document["run"]], 0, Stop())
    (stack,) = bare["stacks"]
    assert not bare["values"] and len(stack["blocks"]) == 32 and len(stack["rows"]) == 3
    assert stack["start"] == [] and not any(b["norms"] or b["edges"] or b["feed"] for b in stack["blocks"])


@pytest.mark.parametrize("family", ["lfm2", "qwen3_5_text", "granitemoehybrid", "mamba2", "falcon_h1", "mamba"])
def test_what_stands_in_attentions_place_has_its_marks(family: str) -> None:
    """A block of each kind tells how much it adds, of every row; edges come from attention alone. Mamba-2's own have one part."""
    folder = str(judge(family).folder)
    session = Session(folder, LIMITS)
    document = session.new_run(RunRequest(folder, None, (3, 1, 4, 1, 5)), Stop())
    (stack,) = map_document(session.runs[document["run"]], 0, Stop())["stacks"]
    assert all(len(b["attention"]) == 5 and min(b["attention"]) > 0 for b in stack["blocks"])
    assert [len(b["feed"]) for b in stack["blocks"]] == {"mamba2": [0, 0], "mamba": [0, 0], "falcon_h1": [5, 5]}.get(family, [5] * 3)
    edges = {"mamba2": [False] * 2, "mamba": [False] * 2, "falcon_h1": [True] * 2}.get(family, [False, True, False])
    assert [bool(b["edges"]) for b in stack["blocks"]] == edges


@pytest.mark.parametrize(("family", "parts"), [("gpt_neox", ("attn", "ffn")), ("falcon_h1", ("attn_scaled", "mamba_scaled"))])
def test_two_parts_that_are_added_at_once_have_a_mark_each(family: str, parts: tuple[str, str]) -> None:
    """Both are added to the stream that entered, and neither is taken for the stream."""
    folder = str(judge(family).folder)
    session = Session(folder, LIMITS)
    run = session.runs[session.new_run(RunRequest(folder, None, (3, 1, 4, 1, 5)), Stop())["run"]]
    sums = block_of(records(run, 0), "layers.0")
    assert sums is not None and sums.enters.path == sums.added[0][2].path == ("scaled" if family == "falcon_h1" else "embed")
    assert [x.path for _, x, _ in sums.added[:2]] == [f"layers.0.{part}" for part in parts]
    document = map_document(run, 0, Stop())["stacks"][0]["blocks"][0]
    assert len(document["attention"]) == len(document["feed"]) == 5
