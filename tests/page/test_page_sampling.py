"""The page's sampler is the engine's: numbers of the engine, which the page's own tests hold its twin to (web/src/sampling)."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch

from pellucid.ops.sampling.settings import Sampling
from pellucid.ops.sampling.stages import choose, stages
from pellucid.ops.sampling.uniform import uniform

VECTORS = Path(__file__).parents[2] / "web" / "src" / "sampling" / "vectors.json"
PROMPT, OUTPUT = [3, 7, 7, 19], [7, 21, 21, 40]
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition": 1.7, "frequency": 0.9},
    {"temperature": 1.0, "seed": 0},
    {"temperature": 0.7, "seed": 1},
    {"temperature": 1.3, "top_k": 5, "seed": 2},
    {"temperature": 1.0, "top_k": 3, "seed": 2},
    {"temperature": 0.9, "top_p": 0.8, "seed": 3},
    {"temperature": 2.0, "min_p": 0.1, "seed": 4},
    {"temperature": 1.1, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "repetition": 1.2, "presence": 0.5, "frequency": 0.3, "seed": 5},
    {"temperature": 0.5, "presence": -1.5, "frequency": -0.25, "seed": 2**53 - 1},
    {"temperature": 1e-9, "seed": 6},
]


def vectors() -> dict[str, Any]:
    """Return logits with ties, and the stages and picks of every setting on them."""
    logits = torch.randn(48, generator=torch.Generator().manual_seed(11)).mul(3)
    logits[[9, 30]] = logits[4].item()
    logits[[12, 13]] = logits.max().item()
    cases = []
    for setting in SETTINGS:
        s = Sampling.of({"seed": 0} | setting)
        made = [
            {"name": name, "values": [None if x == float("-inf") else x for x in values.tolist()]}
            for name, values in stages(logits, s, PROMPT, OUTPUT)
        ]
        cases.append(
            {"sampling": setting, "stages": made, "picks": [choose(logits, s, PROMPT, OUTPUT[:n]) for n in range(len(OUTPUT) + 1)]}
        )
    seeds = [(0, 0), (0, 1), (1, 0), (7, 300), (2**53 - 1, 12)]
    return {
        "prompt": PROMPT,
        "output": OUTPUT,
        "logits": logits.tolist(),
        "cases": cases,
        "uniform": [{"seed": seed, "step": step, "value": uniform(seed, step)} for seed, step in seeds],
    }


def same(a: Any, b: Any) -> bool:
    """Return True if two documents differ at most in the last bits of fractions, as exponentials of two processors do."""
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-9)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(value, b[key]) for key, value in a.items())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


def test_the_pages_vectors_are_the_engines() -> None:
    stored, own = json.loads(VECTORS.read_text(encoding="utf-8")), json.loads(json.dumps(vectors()))
    assert same(stored, own)
    own["cases"][0]["stages"][0]["values"][3] *= 1.001
    assert not same(stored, own)
    stored["cases"][0]["stages"][0]["values"][3] *= 1.001
    stored["cases"][2]["picks"][1] += 1
    assert not same(stored, own)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(vectors()) + "\n")
