"""The quick form of the campaign of draws, and the faults that it must find."""

from typing import Any

import pytest
import torch

from campaigns import sampling
from campaigns.sampling import HOWS, SETTINGS, campaign, p_value, rejected
from pellucid.ops.sampling import stages
from pellucid.ops.sampling.uniform import uniform
from tiny import swapped

QUICK = (0, 7, 14, 21, 28, 5)  # each kind of logits and each way of sampling once
DRAWS = 20_000
cuts, changes, draw = stages.CUTS, stages.CHANGES, stages.draw


def test_draws_follow_the_probabilities() -> None:
    assert len({SETTINGS[i][0] for i in QUICK}) == 5 and len({str(SETTINGS[i][1]) for i in QUICK}) == len(HOWS)
    report = campaign(QUICK, DRAWS, 2)
    assert report["faults"] == [], report


MUTANTS: list[tuple[int, str, Any]] = [
    (14, "CUTS", {**cuts, "top_p": lambda x, p: cuts["top_p"](x, p * 1.02)}),
    (7, "CUTS", {**cuts, "top_k": lambda x, k: cuts["top_k"](x, k + 1)}),
    (21, "CUTS", {**cuts, "min_p": lambda x, p: cuts["min_p"](x, p / 2)}),
    (28, "CUTS", {name: cuts[name] for name in ("min_p", "top_p", "top_k")}),
    (14, "CHANGES", {**changes, "temperature": lambda x, s, h: changes["temperature"](x, s, h) * 1.2}),
    (11, "CHANGES", {**changes, "presence": lambda x, s, h: x}),
    (0, "uniform", lambda seed, step: uniform(seed, step) ** 1.1),
    (0, "uniform", lambda seed, step: uniform(seed, step // 2)),  # each number twice
    (0, "uniform", lambda seed, step: uniform(seed % 4096, step)),  # few streams
    (21, "draw", lambda p, u: draw(p, u).sub(1).clamp(min=0)),
    (0, "draw", lambda p, u: draw(p.flip(0), u)),
]


@pytest.mark.parametrize(("number", "name", "mutant"), MUTANTS)
@pytest.mark.quick(4)
def test_faults_are_found(number: int, name: str, mutant: Any) -> None:
    with swapped(stages, name, mutant):
        assert campaign([number], DRAWS, 2)["faults"] == [0]


def test_known_chi_squares() -> None:
    """With one degree of freedom 3.841 and 10.828 are 0.05 and 0.001, as in tables; pooled bins count as one."""
    half = torch.tensor([0.5, 0.5], dtype=torch.float64)
    for chi, p in ((3.841459, 0.05), (10.827566, 0.001)):
        off = (chi * 10_000) ** 0.5 / 2
        assert p_value(torch.tensor([5000 + off, 5000 - off]), half) == pytest.approx(p, rel=1e-5)
    rare = torch.tensor([0.5, 0.4999, 0.00005, 0.00005], dtype=torch.float64)
    assert p_value(torch.tensor([5000, 4998, 2, 0]), rare) > 0.3
    assert p_value(torch.tensor([5000, 4000, 500, 500]), rare) < 1e-100
    assert rejected([0.5, 1e-9, 6e-5, 2e-5]) == [1, 3] and rejected([1e-3]) == [] and sampling.LEVEL == 1e-4
