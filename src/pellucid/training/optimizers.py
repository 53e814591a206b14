"""The optimizers of training: AdamW, and Muon for the matrices of layers with AdamW for the rest.

    AdamW   arXiv 1711.05101        its parts are in move.py; the operations of torch's, on pieces that stay in the processor's cache
    Muon    m ← μ·m + (1 − μ)·g        u = (1 − μ)·g + μ·m        W ← (1 − η·λ)·W − η·0.2·√max(out, in)·O(u)

O(u) is u with its singular values near 1, by five steps of a polynomial (K. Jordan 2024); the factor gives a step the size of AdamW's, so
that one learning rate serves both (arXiv 2502.16982). It is computed in the dtype of the weights.

O needs complete matrices. Ranks that have parts of one gather u, each computes O(u), and takes its own part of it; m stays divided.
"""

import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pellucid.counting.training_extra import PIECE
from pellucid.counting.training_ranks import orthogonalised
from pellucid.sharding import UNSPLIT, Sharding
from pellucid.training.recipe import TrainSettings
from pellucid.watching.meta import untrace

COEFFICIENTS, TURNS, LEAST = (3.4445, -4.7750, 2.0315), 5, 1e-7
SIZE = 0.2  # root mean square of an AdamW step, over the learning rate

if "torch._dynamo" not in sys.modules:  # as in meta: what torch wraps imports its compiler when first called
    for method in vars(torch.optim.Optimizer).values():
        untrace(method)


class AdamW(torch.optim.AdamW):
    """torch's AdamW with the same state and the same bits: all its operations on one piece of a weight, then on the next one.

    torch's own wrapper of a step imports torch's compiler and triton only to disable them.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.change(p, p.grad, group)
        return loss

    def change(self, p: Tensor, gradient: Tensor, group: Mapping[str, Any]) -> None:
        """Take a step on one weight."""
        state = self.state[p]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
        state["step"] += 1
        step, (mean, square), rate = state["step"].item(), group["betas"], group["lr"]
        size, root = rate / (1 - mean**step), (1 - square**step) ** 0.5
        of = [p, gradient, state["exp_avg"], state["exp_avg_sq"]]
        split = p.numel() > PIECE and all(t.is_contiguous() for t in of)
        pieces = zip(*(t.view(-1).split(PIECE) if split else [t] for t in of), strict=True)
        for w, g, m, v in pieces:
            w.mul_(1 - rate * group["weight_decay"])
            m.lerp_(g, 1 - mean)
            v.mul_(square).addcmul_(g, g, value=1 - square)
            w.addcdiv_(m, v.sqrt().div_(root).add_(group["eps"]), value=-size)


class Muon(AdamW):
    """Muon for the groups that say so, AdamW for the others. paths: of its matrices.  sharding: of them over ranks."""

    def __init__(self, groups: list[dict[str, Any]], paths: Mapping[Tensor, str], sharding: Sharding, **how: Any) -> None:
        super().__init__(groups, **how)
        self.paths, self.sharding = paths, sharding

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        every = self.param_groups
        self.param_groups = [group for group in every if not group.get("muon")]
        loss = super().step(closure)
        self.param_groups = every
        for group in every:
            for p in group["params"] if group.get("muon") else ():
                if p.grad is not None:
                    self.take(p, p.grad, group)
        return loss

    def take(self, p: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Take Muon's step on one matrix, or on each of a stack [E out in]; on this rank's part of what is divided over ranks."""
        state, mu, rate = self.state[p], group["momentum"], group["lr"]
        m = state.setdefault("momentum", torch.zeros_like(p))
        m.lerp_(gradient, 1 - mu)
        u, path = gradient.lerp(m, mu), self.paths[p]
        divided = self.sharding.divides_matrices(path, u.ndim)
        if divided:
            u = self.sharding.joined(path, u)
        o = orthogonal(u)
        p.mul_(1 - rate * group["weight_decay"])
        p.add_(self.sharding.part(path, o) if divided else o, alpha=-rate * SIZE * math.sqrt(max(u.shape[-2:])))


def orthogonal(u: Tensor) -> Tensor:
    """Return u [... out in] with its singular values near 1: x ← a·x + (b·x·xᵀ + c·(x·xᵀ)²)·x, five times, from x = u / |u|."""
    x: Tensor = u.mT if u.shape[-2] > u.shape[-1] else u
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=LEAST)
    a, b, c = COEFFICIENTS
    for _ in range(TURNS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if u.shape[-2] > u.shape[-1] else x


class Named(Protocol):
    """Parameters by path: a model's, or master weights."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield each with its path."""


def optimizer(model: Named, s: TrainSettings, sharding: Sharding = UNSPLIT) -> AdamW:
    """Return the optimizer of what trains in a model; matrices decay, norms and biases do not. sharding: of its weights over ranks."""
    trained = {path: p for path, p in model.named_parameters() if p.requires_grad}
    matrices = {path: p for path, p in trained.items() if s.optimizer == "muon" and orthogonalised(path, p.ndim)}
    decays = [p for path, p in trained.items() if p.ndim >= 2 and path not in matrices]
    stays = [p for p in trained.values() if p.ndim < 2]
    groups: list[dict[str, Any]] = [{"params": decays, "weight_decay": s.weight_decay}, {"params": stays, "weight_decay": 0.0}]
    how: dict[str, Any] = {"lr": s.learning_rate, "betas": (s.beta1, s.beta2), "eps": 1e-8}
    if not matrices:
        return AdamW(groups, **how)
    groups.append({"params": list(matrices.values()), "weight_decay": s.weight_decay, "muon": True, "momentum": s.momentum})
    return Muon(groups, {p: path for path, p in matrices.items()}, sharding, **how)
