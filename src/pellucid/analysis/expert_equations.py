"""The four equations of a layer of experts (arXiv 2412.19437, 12 to 16), each computed by hand from a run and compared with it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pellucid import ops
from pellucid.analysis.expert_scores import scores, spec_of, tensor
from pellucid.analysis.rows import largest_gap
from pellucid.nn.moe import Moe
from pellucid.tracing import Trace

SYMBOLS = "s", "e", "g", "y"


@dataclass(frozen=True, eq=False)
class ExpertEquation:
    """One equation. symbol: what it gives, of SYMBOLS.  path: of that tensor in the run.  dims: its axes.

    matrix: the sizes of its weights, "" without one.  value: the run's tensor [B T n].  gap: to what the equation gives in float64.
    """

    symbol: str
    path: str
    dims: str
    matrix: str
    value: Tensor
    gap: float

    @property
    def shape(self) -> str:
        """Return the tensor's sizes, "1 × 5 × 8"."""
        return " × ".join(map(str, self.value.shape))

    def rows(self, channels: int) -> list[list[float]]:
        """Return the first channels of each token's row."""
        numbers: list[list[float]] = self.value[0, :, :channels].tolist()
        return numbers


def equations(run: Trace, block: int) -> list[ExpertEquation]:
    """Compute the equations of a block over a run's prompt, each from the run's tensors before it."""
    return list(computed(run, block))


def computed(run: Trace, block: int) -> Iterator[ExpertEquation]:
    """Yield the equations of a block's experts."""
    path = f"layers.{block}.ffn"
    part: Moe = run.runner.module.get_submodule(path)
    spec, u = spec_of(run, block), run.all(f"{path}_norm")[0].value.double()
    affinity, chosen, share = tensor(run, block, "affinity").double(), tensor(run, block, "chosen"), tensor(run, block, "share").double()

    def equation(symbol: str, name: str, dims: str, weights: Sequence[Tensor], value: Tensor) -> ExpertEquation:
        own = run.all(f"{path}.{name}" if name else path)[0].value
        matrix = ", ".join(" × ".join(map(str, w.shape)) for w in weights)
        pair = (value, own.double()) if symbol != "e" else (value.sort(-1)[0], own.sort(-1)[0])  # a choice has no order
        return ExpertEquation(symbol, f"{path}.{name}" if name else path, dims, matrix, own, largest_gap(*pair))

    router = part.router.dense_weight().detach()
    yield equation("s", "affinity", "B T E", [router], torch.sigmoid(u @ router.double().T))
    ranked = affinity if spec.groups > 1 and spec.group_best > 1 else tensor(run, block, "router").double()
    ranked = ranked if part.correction is None else affinity + part.correction.double()
    yield equation("e", "chosen", "B T A", [], highest(ranked, spec.chosen, spec.groups, spec.groups_chosen, spec.group_best))
    won = affinity.gather(-1, chosen)
    yield equation("g", "share", "B T A", [], won / won.sum(-1, keepdim=True) * spec.scale)
    weights = [w for w in (part.gate, part.up, part.down) if w is not None]
    shared = tensor(run, block, "shared").double() if spec.shared else 0.0
    yield equation("y", "", "B T D", weights, shared + mixed(part, spec.act, u, chosen, share))


def highest(ranked: Tensor, count: int, groups: int, groups_chosen: int, group_best: int) -> Tensor:
    """Return the experts of the highest ranks [B T E], the highest first, from the groups whose best few have the highest sums."""
    size = ranked.shape[-1] // groups
    best = ranked.unflatten(-1, (groups, size)).sort(-1, descending=True)[0][..., : min(group_best, size)].sum(-1)
    place = best.argsort(-1, descending=True).argsort(-1).repeat_interleave(size, -1)
    return ranked.masked_fill(place >= groups_chosen, -torch.inf).argsort(-1, descending=True)[..., :count]


def mixed(part: Moe, act: str, u: Tensor, chosen: Tensor, share: Tensor) -> Tensor:
    """Return Σ share · expert(u) over each token's chosen experts, one token and one expert after another."""
    out = torch.zeros_like(u)
    for b, t, a in torch.cartesian_prod(*map(torch.arange, chosen.shape)).tolist():
        e = int(chosen[b, t, a])
        up = u[b, t] @ part.up[e].detach().double().T
        gate = None if part.gate is None else u[b, t] @ part.gate[e].detach().double().T
        neurons = ops.gate(up, None, act) if gate is None else ops.gate(gate, up, act)
        out[b, t] += share[b, t, a] * (neurons @ part.down[e].detach().double().T)
    return out


DRAWN = 8  # experts of a group that are all drawn; of a larger one the chosen


@dataclass(frozen=True)
class Route:
    """The way of one row through a layer of experts. groups: {group that is open: its experts}.  shares: {chosen expert: its share}."""

    groups: dict[int, list[int]]
    shares: dict[int, float]


def route(run: Trace, block: int, row: int) -> Route:
    """Return the way of a row. Of a group of more than DRAWN experts the chosen ones alone are drawn."""
    own, spec = scores(run, block, row), spec_of(run, block)
    shares = {s.expert: s.share for s in own if s.share is not None}
    ranked = torch.tensor([s.ranked for s in own])
    size = spec.experts // spec.groups
    allowed = highest(ranked, spec.groups_chosen * size, spec.groups, spec.groups_chosen, spec.group_best)
    opened = sorted({n // size for n in allowed.tolist()})
    members = {g: range(g * size, (g + 1) * size) for g in opened}
    return Route({g: [n for n in experts if size <= DRAWN or n in shares] for g, experts in members.items()}, shares)
