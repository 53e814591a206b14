"""Muon: singular values by their polynomial, steps beside torch's own, and a run of it that stops and goes on to the same bits."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pellucid.errors import UseError
from pellucid.nn.transformer import Decoder
from pellucid.sharding import UNSPLIT
from pellucid.training import optimizers
from pellucid.training.optimizers import COEFFICIENTS, TURNS, Muon, optimizer, orthogonal
from pellucid.training.why import why_moved
from test_resume_damage import stopped_at
from tiny import DECODERS, swapped
from training import SETTINGS, fresh, resumed, run_of, silent, state

MUON = replace(SETTINGS, optimizer="muon", weight_decay=0.1)


def by_svd(u: Tensor) -> Tensor:
    """The polynomial on the singular values alone."""
    left, values, right = torch.linalg.svd(u, full_matrices=False)
    values = values / values.norm(dim=-1, keepdim=True)
    for _ in range(TURNS):
        values = sum(c * values ** (2 * i + 1) for i, c in enumerate(COEFFICIENTS))
    return left @ torch.diag_embed(values) @ right


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (4, 4), (3, 5, 9)])
def test_singular_values(shape: tuple[int, ...]) -> None:
    """In float64, of a matrix and of each of a stack; all near 1."""
    u = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert float((orthogonal(u) - by_svd(u)).abs().max()) < 1e-10
    values = torch.linalg.svdvals(orthogonal(u))
    assert 0.3 < float(values.min()) <= float(values.max()) < 1.3
    with swapped(optimizers, "TURNS", 4):
        assert float((orthogonal(u) - by_svd(u)).abs().max()) > 1e-4
    assert not orthogonal(torch.zeros(shape)).any()


def test_steps_are_those_of_torch() -> None:
    """But for its bfloat16, which rounds each step's direction."""
    draw = torch.Generator().manual_seed(3)
    first = torch.randn(12, 20, generator=draw)
    own, other = (nn.Parameter(first.clone()) for _ in range(2))
    muon = Muon([{"params": [own], "weight_decay": 0.1, "muon": True, "momentum": 0.95}], {own: "layers.0.q"}, UNSPLIT, lr=0.02)
    judge = torch.optim.Muon([other], lr=0.02, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for _ in range(5):
        own.grad = torch.randn(12, 20, generator=draw)
        other.grad = own.grad.clone()
        muon.step()
        judge.step()
    moved = float((other - first).detach().norm())
    assert float((own - other).detach().norm()) < 0.02 * moved


def test_which_weights_it_takes() -> None:
    """Matrices of layers and stacks of experts, not tables, norms or biases."""
    model = Decoder(DECODERS["deepseek_v3"])
    orthogonalised = {id(p) for g in optimizer(model, MUON).param_groups if g.get("muon") for p in g["params"]}
    names = {n for n, p in model.named_parameters() if id(p) in orthogonalised}
    assert any(n.endswith("ffn.up") for n in names) and any("attn" in n for n in names)
    assert all("layers." in n and "norm" not in n and "bias" not in n for n in names)
    assert all("muon" not in g for g in optimizer(model, SETTINGS).param_groups)


def test_a_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    run = run_of(tmp_path / "whole", MUON)
    run.train(silent)
    stopped_at(tmp_path / "cut", 7, s=MUON)
    assert state(resumed(tmp_path / "cut", s=MUON)) == state(run)
    assert isinstance(run.optimizer, Muon) and "layers.0.attn.q.weight:momentum" in state(run)
    with pytest.raises(UseError, match="Muon"):
        why_moved(run_of(tmp_path / "why", MUON, model=fresh()), [0, 1], "layers.0.attn.q.weight", (0, 0))
