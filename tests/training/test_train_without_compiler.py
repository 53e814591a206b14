"""Training imports no compiler: torch's is a second to import, and what it brings complains when the process ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pellucid.counting.training_extra import PIECE
from pellucid.training.optimizers import AdamW, optimizer
from test_recipe import written
from training import SETTINGS, corpus_of, fresh

TRAIN = """
import sys
from pellucid.commands import main
print(main(), *({"torch", "torch._dynamo", "triton"} & {*sys.modules}))
"""
STEP = """
import sys, torch
p = torch.nn.Parameter(torch.ones(1))
p.grad = p.detach()
{}([p]).step()
print("torch._dynamo" in sys.modules)
"""


def python(code: str, *given: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, which runs this code on these words."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, "-c", code, *given], env=env, capture_output=True, text=True, timeout=120, check=True)


def test_training_imports_no_compiler(tmp_path: Path) -> None:
    """Neither torch's nor triton, which prints lines of "nanobind: leaked" at the end of a process."""
    corpus_of(tmp_path / "corpus", "France", "Spain")
    recipe = written(tmp_path / "mini.toml", batch="2", steps="2")
    done = python(TRAIN, "train", str(recipe), "--out", str(tmp_path / "out"))
    assert done.stdout.splitlines()[-1] == "0 torch"
    assert "nanobind" not in done.stderr and {line.split()[0] for line in done.stderr.splitlines()} == {"step", "scores"}


def test_a_step_of_torchs_own_would_import_it() -> None:
    """What the test above watches happens: by torch's AdamW, not by the one of a run."""
    ours = "from pellucid.training.optimizers import AdamW" + STEP.format("AdamW")
    assert python(ours + STEP.format("torch.optim.AdamW")).stdout == "False\nTrue\n"


def test_steps_are_torchs_own() -> None:
    """The weights and moments after some steps are those of torch's AdamW, bit for bit, and no step is on the tape."""
    ours, theirs = fresh(), fresh()
    made = optimizer(ours, SETTINGS)
    groups = [{**g, "params": [p for p in theirs.parameters() if (p.ndim >= 2) == (g["weight_decay"] > 0)]} for g in made.param_groups]
    judge = torch.optim.AdamW(groups)
    for number in range(3):
        draw = torch.Generator().manual_seed(number)
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            p.grad = torch.randn(p.shape, generator=draw)
            q.grad = p.grad.clone()
        made.step()
        judge.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(p, q) and p.grad_fn is None
        assert all(torch.equal(made.state[p][k], v) for k, v in judge.state[q].items())
    assert any(not torch.equal(p, q) for p, q in zip(ours.parameters(), fresh().parameters(), strict=True))


@pytest.mark.parametrize("shape", [(3, PIECE // 2 + 5), (2, PIECE)])
def test_pieces_have_torchs_bits(shape: tuple[int, ...]) -> None:
    """With a rest, without one, and where a gradient lies in another order, which is not cut; without decay and with it."""
    draw = torch.Generator().manual_seed(1)
    for decay, transposed in ((0.1, False), (0.0, False), (0.1, True)):
        own = torch.nn.Parameter(torch.randn(shape, generator=draw))
        other = torch.nn.Parameter(own.detach().clone())
        pair = [kind([p], lr=1e-2, weight_decay=decay) for kind, p in ((AdamW, own), (torch.optim.AdamW, other))]
        for _ in range(3):
            gradient = torch.randn(shape, generator=draw)
            own.grad, other.grad = (gradient.mT.contiguous().mT if transposed else gradient), gradient.clone()
            for one in pair:
                one.step()
        ours, theirs = pair[0].state[own], pair[1].state[other]
        assert torch.equal(own, other) and all(torch.equal(ours[name], theirs[name]) for name in ("step", "exp_avg", "exp_avg_sq"))
