"""Gradients by depth, against differences of the loss when a stream is moved; norms against their formulas."""

import pytest
import torch

import pellucid
from pellucid.analysis.depth_gradients import answer_of, depth_gradients, growth, norm_kept
from pellucid.analysis.rows import stream
from pellucid.api.model import Model

PROMPT = "The capital of Japan is"
STEP = 1e-6


@pytest.fixture(scope="module")
def model() -> Model:
    return pellucid.load("pellucid/capitals-llama", dtype="float64")


def test_gradients_are_differences(model: Model) -> None:
    """A step along a direction moves the loss by the step times the gradient there; the sum over all directions is its size."""
    token = answer_of(pellucid.trace(model, PROMPT))
    ids = torch.tensor([model.ids(PROMPT)])
    sizes = depth_gradients(model, PROMPT, token)
    path = "layers.1.out"
    assert list(sizes) == [f"layers.{i}.out" for i in range(len(model.config.layers))]

    def loss(move: torch.Tensor) -> float:
        with torch.no_grad(), pellucid.watch(model, only=(), edit={path: lambda x: x + move}):
            return -float(model(ids, rows=-1)[0, -1].log_softmax(-1)[token])

    with torch.enable_grad(), pellucid.watch(model, only=path, grad=True) as seen:
        (-model(ids, rows=-1)[0, -1].log_softmax(-1)[token]).backward()
    along = seen[path].grad / seen[path].grad.norm()
    slope = (loss(STEP * along) - loss(-STEP * along)) / (2 * STEP)
    assert slope == pytest.approx(sizes[path], rel=1e-5)
    across = torch.randn(along.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    across -= (across * along).sum() * along  # the mutant: at a right angle to the gradient nothing moves
    assert abs(loss(STEP * across) - loss(-STEP * across)) / (2 * STEP) < 1e-3 * sizes[path] * float(across.norm())


def test_no_weight_gets_a_gradient(model: Model) -> None:
    depth_gradients(model, PROMPT, 0)
    assert all(p.grad is None for p in model.module.parameters())


def test_growth() -> None:
    assert growth({"a": 6.0, "b": 1.0, "c": 2.0}) == 3.0 and growth({"a": 1.0, "b": 0.0}) == 0.0


def test_what_a_norm_keeps(model: Model) -> None:
    run = pellucid.trace(model, PROMPT)
    rows = torch.cat([s.value[0] for s in stream(run)])
    centred = rows - rows.mean(-1, keepdim=True)
    rms, layer = norm_kept(run, "rms"), norm_kept(run, "layer")
    assert rms.cosine == pytest.approx(1, abs=1e-12) and (rms.parameters, layer.parameters) == (128, 256)
    assert layer.cosine == pytest.approx(float((centred.norm(dim=-1) / rows.norm(dim=-1)).min()), abs=1e-10)
