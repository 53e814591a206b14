"""A model whose weights are NaN or infinite, as a training that diverged leaves them: each view still gets its documents."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from pellucid.documents import run_map
from pellucid.runs.limits import LIMITS
from served import Served, served
from tiny import swapped

PROMPT, BROKEN = "The capital of France is", "layers.1.ffn.down.weight"
MODELS = {"": "pellucid/capitals", "decoder.": "pellucid/capitals-t5"}


@pytest.fixture(scope="module", params=[(stack, number) for stack in MODELS for number in (math.nan, math.inf)], ids=str)
def broken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    stack, number = request.param
    model = pellucid.load(MODELS[stack])
    with torch.no_grad():
        dict(model.module.named_parameters())[stack + BROKEN][3, 5] = number
    folder: Path = tmp_path_factory.mktemp("broken") / "model"
    model.save(folder)
    return str(folder)


def places(api: Served, run: dict[str, Any]) -> list[str]:
    """Return the addresses that the views ask of a run, of its last step and of the tensors about the broken weight."""
    step = f"/api/runs/{run['run']}/steps/0"
    names = [
        n for n, t in enumerate(run["tensors"]) if t["path"].endswith(("layers.1.ffn", "layers.2.attn.pattern", "layers.3.out", "logits"))
    ]
    tensors = [f"/api/runs/{run['run']}/tensors/{n}" for n in names]
    return [
        f"/api/runs/{run['run']}",
        *(f"{step}{rest}" for rest in ("", "/map", "/lens", "/attribution")),
        *(f"/api/runs/{run['run']}/{rest}" for rest in ("turns", "columns")),
        *(f"{tensor}{rest}" for tensor in tensors for rest in ("/stats", "/terms?index=0,1,2", "/parts?index=0,1,2")),
    ]


def plain(text: str) -> bool:
    """True for JSON without the NaN and Infinity that Python's reader takes and no browser does."""
    strange = list[str]()
    json.loads(text, parse_constant=strange.append)
    return not strange


def failures(folder: str) -> list[str]:
    """Return the addresses that end in an error of the server's own, or in what JSON does not have."""
    with served(folder, LIMITS) as api:
        api.client._transport.raise_server_exceptions = False  # type: ignore[attr-defined]
        run = api.run(folder, PROMPT, new=2)
        out = []
        for place in places(api, run):
            reply = api.client.get(place)
            if reply.status_code >= 500 or not plain(reply.text):
                out.append(f"{place.split(run['run'])[1]} {reply.status_code} {reply.text[:200]}")
        return out


def test_each_view_gets_its_documents(broken: str) -> None:
    assert failures(broken) == []


def test_a_share_that_is_none_is_seen(broken: str) -> None:
    """The mutant draws NaN as an edge."""
    with swapped(run_map, "drawable", lambda shares: shares):
        assert [failure.split()[0] for failure in failures(broken)] == ["/steps/0/map"]
