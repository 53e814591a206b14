"""What a source costs in each step, by the counted bill and by hand; an encoder that runs again is seen."""

import pytest
import torch

import pellucid
from pellucid.analysis import source_reading as reading

TEXT = "The capital of France is"


@pytest.fixture(scope="module")
def run() -> pellucid.Trace:
    return pellucid.trace(pellucid.load("pellucid/capitals-t5", dtype="float64"), TEXT, steps=4)


def test_the_source_is_computed_once(run: pellucid.Trace) -> None:
    first, *rest = reading.source_steps(run)
    cfg = run.runner.config
    blocks, rows, width = len(cfg.encoder), len(run.ids), cfg.width
    products = 4 * width * width + 3 * width * 192  # q, k, v, o; gate, up, down
    assert first.encoder == blocks * (2 * rows * products + 4 * rows * rows * width)
    assert first.kept == first.read == blocks * 2 * rows * width * 8
    assert [(s.encoder, s.kept, s.read) for s in rest] == [(0, 0, first.kept)] * 3
    assert first.encoder + first.decoder == sum(s.flops or 0 for s in run if s.step == 0)


def test_an_encoder_that_runs_again(run: pellucid.Trace) -> None:
    with torch.no_grad():
        again = reading.encoded_again(run.runner, run)
    kept, anew = reading.source_steps(run), reading.source_steps(again)
    assert [s.encoder for s in anew] == [kept[0].encoder] * 4 and [s.kept for s in anew] == [kept[0].kept] * 4
    assert reading.logit_gap(run, again) < 1e-10 and reading.row_gap(again) == 0.0
    assert reading.times_as_much(kept, anew) > 2 and reading.times_as_much(kept, kept) == 1


def test_another_target_is_seen(run: pellucid.Trace) -> None:
    other = pellucid.trace(run.runner, "The capital of Japan is", steps=4)
    with torch.no_grad():
        again = reading.encoded_again(run.runner, other)
    assert reading.logit_gap(run, again) > 1e-3


def test_weights_are_means(run: pellucid.Trace) -> None:
    weights = reading.read_weights(run)
    assert len(weights) == 4 and [sum(row) for row in weights] == pytest.approx([1.0] * 4)
    own = [float(s.value[0, :, -1, 3].mean()) for s in run if s.path.endswith(".cross.pattern") and s.step == 1]
    assert weights[1][3] == pytest.approx(sum(own) / len(own))
