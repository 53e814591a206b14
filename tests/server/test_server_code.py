"""The parts of a cell and the code behind a tensor, over the API: Python's own, and nothing but this package's files."""

from typing import Any

import pytest

import pellucid
from pellucid.analysis.attribution import attribution
from programs import run_lines
from served import Served

PROMPT = "The capital of France is"
CELL = "0,4,1,7"


def numbered(run: dict[str, Any], path: str) -> int:
    """Return the number of a tensor of a run."""
    return next(int(t["n"]) for t in run["tensors"] if t["path"] == path)


def test_parts_are_the_python_apis(api: Served) -> None:
    run = api.run("pellucid/capitals", PROMPT)
    model = pellucid.load("pellucid/capitals", dtype="float32")
    trace = pellucid.trace(model, PROMPT)
    for path, cell in (("layers.1.attn.q", CELL), ("layers.1.attn.scores", "0,1,4,3"), ("layers.2.out", "0,4,9")):
        document = api.get(f"/api/runs/{run['run']}/tensors/{numbered(run, path)}/parts", "parts", cell=cell)
        expected = attribution(model, trace, cell=(path, cell))
        assert document["value"] == expected.value and document["constant"] == list(expected.constant)
        assert document["total"] == pytest.approx(document["value"], abs=1e-4)
        assert document["count"] == len(expected.parts) + len(expected.rest)
        assert [p["value"] for p in document["parts"]] == pytest.approx(
            [s.value for s in expected.largest(len(document["parts"]))], abs=1e-5
        )


def test_code_is_the_op_and_the_lines_give_the_cell(api: Served) -> None:
    run = api.run("pellucid/capitals", PROMPT)
    n = numbered(run, "layers.1.attn.q")
    code = api.get("/api/code", "code", run=run["run"], tensor=n, cell=CELL)
    assert code["op"] == "linear" and [s["what"] for s in code["sources"]] == ["op", "part"]
    assert [s["file"] for s in code["sources"]] == ["pellucid/ops/linear.py", "pellucid/nn/attention.py"]
    assert "def linear(" in code["sources"][0]["text"] and "def forward(" in code["sources"][1]["text"]
    value = api.client.get(f"/api/runs/{run['run']}/tensors/{n}/terms?cell={CELL}").json()["value"]
    assert run_lines(code["python"]) == value
    other = api.get("/api/code", "code", run=run["run"], tensor=n, cell="0,4,1,8")
    assert run_lines(other["python"]) != value


@pytest.mark.parametrize(
    "query",
    ["path=/etc/passwd", "file=../../setup.py", "run={run}&tensor=3&path=layers.0", "run={run}&tensor=-1", "run={run}&tensor=0&cell=9,9,9"],
)
def test_no_path_is_taken(api: Served, query: str) -> None:
    run = api.run("pellucid/capitals", PROMPT)["run"]
    assert api.client.get("/api/code?" + query.format(run=run)).status_code in (400, 404)
    assert api.client.get(f"/api/runs/{run}/tensors/3/parts?cell=0,99,0").status_code == 400


def test_a_run_with_changes_has_no_lines(api: Served) -> None:
    run = api.run("pellucid/capitals", PROMPT, changes=["layers.0.attn.z[H=1] = 0"])
    code = api.get("/api/code", "code", run=run["run"], tensor=0)
    assert code["python"] == [] and code["sources"]
