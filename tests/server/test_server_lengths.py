"""A run whose text crosses the length at which rotary positions change shows each step as it ran."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from pellucid import config as c
from pellucid.runs.kept_run import Run
from served import Served, served
from tiny import swapped

MODEL, PROMPT, BOUND = "pellucid/capitals-llama", "The capital of France is", 7


@pytest.fixture
def api() -> Iterator[Served]:
    with served(MODEL) as api:
        yield api


def bend(api: Served, scaling: str) -> Any:
    """Give the served specimen another scaling of its angles, and no stop token; return its module."""
    loaded = api.session.registry[MODEL]
    loaded.model.generation = {"eos_token_id": 10**6}  # type: ignore[union-attr]
    module: Any = loaded.module
    rope = module.layers[0].attn.rope
    factors = tuple(1.0 + i for i in range(rope.width // 2))
    kind = c.Dynamic(3.0, BOUND) if scaling == "dynamic" else c.LongRope((1.0,) * (rope.width // 2), factors, BOUND, 1.1)
    bent = replace(rope, scaling=kind)
    for layer in module.layers:
        layer.attn.rope = bent
    module.config = replace(module.config, layers=tuple(replace(one, attn=replace(one.attn, rope=bent)) for one in module.config.layers))
    return module


@pytest.mark.parametrize("scaling", ["dynamic", "longrope"])
def test_every_step_shows_the_turns_that_ran_in_it(api: Served, scaling: str) -> None:
    """From 5 tokens to 10, the pairs of a head sum to its score, for queries of each step and any key."""
    scale = bend(api, scaling).layers[1].attn.scale
    run = api.run(MODEL, PROMPT, new=6)
    again = scaling == "longrope"
    fed = [(len(s["fed"]), s["past"]) for s in run["steps"]]
    assert fed == [(5, 0), (1, 5), (1, 6), (8, 0) if again else (1, 7), (1, 8), (1, 9)]
    text = [*run["ids"], *run["new"]]
    assert all(s["fed"] == text[s["past"] : s["past"] + len(s["fed"])] for s in run["steps"])

    def gap() -> float:
        gaps = []
        for k, (rows, before) in enumerate(fed):
            tensors = api.get(f"/api/runs/{run['run']}/steps/{k}", "step")["tensors"]
            scores = next(t for t in tensors if t["path"] == "layers.1.attn.scores")
            assert scores["shape"][-2:] == [rows, before + rows]
            table = api.tensor(run["run"], scores["n"])[0]
            for row in {0, rows - 1}:
                for key in {0, before + row}:
                    query = {"part": "layers.1.attn", "query": before + row, "key": key, "head": 1, "step": k}
                    turns = api.get(f"/api/runs/{run['run']}/turns", "turns", **query)
                    gaps.append(abs(turns["total"] * scale - float(table[0, 1, row, key])))
                    for p in turns["pairs"]:
                        gaps.append(abs(p["angles"][0] - p["frequency"] * (before + row)))
        return max(gaps)

    assert gap() < 1e-4
    if again:
        with swapped(Run, "fed", lambda self, k: (text[-1:], 0 if k == 0 else len(self.read) + k - 1)):  # the mutant counts tokens
            assert [s["past"] for s in api.get(f"/api/runs/{run['run']}", "run")["steps"]] != [before for _, before in fed]
