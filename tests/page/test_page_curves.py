"""web/src/sums/curves.json: what the page's activations are compared with is what the ops compute in float64."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pellucid.ops.gate import ACTS, clamped

CURVES = Path(__file__).parents[2] / "web" / "src" / "sums" / "curves.json"
POINTS = [-12.0, -7.5, -4.0, -2.6, -1.0, -0.3, 0.0, 1e-3, 0.5, 1.83, 2.5, 3.7, 6.5, 9.0]


def made() -> dict[str, Any]:
    """Return every activation at the points."""
    x = torch.tensor(POINTS, dtype=torch.float64)
    acts = {name: act(x).tolist() for name, act in (ACTS | {"clamped": clamped, "sigmoid": torch.sigmoid}).items()}
    return {"x": POINTS, "acts": acts}


def test_the_curves_are_the_ops() -> None:
    """To the last units: processors with other vectors round an exponential otherwise."""
    kept, now = json.loads(CURVES.read_text(encoding="utf-8")), made()
    assert kept["x"] == now["x"] and kept["acts"].keys() == now["acts"].keys()
    assert all(kept["acts"][name] == pytest.approx(values, rel=1e-14, abs=0) for name, values in now["acts"].items())
