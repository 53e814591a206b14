"""Rotary positions by hand: a score keeps the distance alone, and a run's own scores are those at no shift."""

import math

import pytest
import torch

import pellucid
from pellucid import ops
from pellucid.analysis import rotary
from pellucid.config import Rope


@pytest.fixture(scope="module")
def run() -> pellucid.Trace:
    return pellucid.trace(pellucid.load("pellucid/capitals-llama", dtype="float64"), "The capital of France is")


def test_scores_are_those_of_the_run(run: pellucid.Trace) -> None:
    made = run["layers.0.attn.scores"]
    scores = rotary.scores_at(run, 0, 0) * made.settings["scale"]
    assert torch.allclose(scores.tril(), made.value[0].nan_to_num(0.0, neginf=0.0).tril(), atol=1e-10)


def test_maps_are_the_runs_and_bare_products(run: pellucid.Trace) -> None:
    rotated, bare = rotary.score_maps(run, 1)
    q, k = run["layers.0.attn.q"].value[0, :, 1], run["layers.0.attn.k"].value[0, :, 0]  # heads 0 and 1 share a key
    assert [[v is None for v in row] for row in rotated] == [[s > t for s in range(5)] for t in range(5)]
    assert rotated[3][1] == float(run["layers.0.attn.scores"].value[0, 1, 3, 1])
    assert bare[3][1] == pytest.approx(float(q[3] @ k[1]) / 32**0.5, abs=1e-10) and abs((bare[3][1] or 0) - (rotated[3][1] or 0)) > 0.1


def test_distance_alone_counts(run: pellucid.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rotary.shift_gap(run, 7, 7) < 1e-10 and rotary.shift_gap(run, 7, 0) > 1
    q, k = run["layers.0.attn.q"].value[0, 3, 0], run["layers.0.attn.k"].value[0, 1, 0]
    angles = [(3 + 7 - 1) * 10_000.0 ** (-2 * i / 32) for i in range(16)]
    by_hand = sum(
        math.cos(a) * float(q[i] * k[i] + q[i + 16] * k[i + 16]) + math.sin(a) * float(q[i] * k[i + 16] - q[i + 16] * k[i])
        for i, a in enumerate(angles)
    )
    assert float(rotary.scores_at(run, 7, 0)[0, 3, 1]) == pytest.approx(by_hand, abs=1e-10)
    angles_of = ops.angles
    monkeypatch.setattr(ops, "angles", lambda at, *rest: angles_of(at * at, *rest))  # turns that are no multiple of the position
    assert rotary.shift_gap(run, 7, 7) > 1


def test_what_turns(run: pellucid.Trace) -> None:
    assert rotary.rotations(run) == (4, 4, 0) and rotary.length_gap(run) < 1e-10
    waves = rotary.wavelengths(Rope(128))
    assert waves[0] == pytest.approx(2 * math.pi) and waves[-1] == pytest.approx(2 * math.pi * 10_000 ** (126 / 128))
