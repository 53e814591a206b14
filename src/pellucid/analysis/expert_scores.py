"""What a router did in a run: the scores of every expert, the choice, and the shares that follow from it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pellucid.analysis.rows import largest_gap
from pellucid.api.count import described
from pellucid.config import Config, Moe
from pellucid.tracing import Trace


@dataclass(frozen=True)
class ExpertScore:
    """An expert in one row. affinity: its score.  ranked: with the correction, what the choice goes by.  share: None if not chosen."""

    expert: int
    group: int
    affinity: float
    ranked: float
    share: float | None


def sparse(cfg: Config) -> list[int]:
    """Return the numbers of the blocks with experts."""
    return [i for i, layer in enumerate(cfg.layers) if layer.ffn.experts]


def grouping(name: str) -> Moe:
    """Return the experts' spec of the last block of a catalogue's model."""
    last: Any = described(name)[1].layers[-1].ffn
    spec: Moe = last
    return spec


def spec_of(run: Trace, block: int) -> Moe:
    """Return the experts' spec of a block."""
    spec: Moe = run.runner.config.layers[block].ffn
    return spec


def tensor(run: Trace, block: int, name: str) -> Tensor:
    """Return a tensor of a block's router in the first step."""
    value: Tensor = run.all(f"layers.{block}.ffn.{name}")[0].value
    return value


def scores(run: Trace, block: int, row: int = -1) -> list[ExpertScore]:
    """Return every expert's scores in one row of a recorded run."""
    spec = spec_of(run, block)
    affinity, ranked, chosen, share = (tensor(run, block, n)[0, row].tolist() for n in ("affinity", "corrected", "chosen", "share"))
    shares = dict(zip(chosen, share, strict=True))
    size = spec.experts // spec.groups
    return [ExpertScore(n, n // size, affinity[n], ranked[n], shares.get(n)) for n in range(spec.experts)]


def score_cell(run: Trace, block: int, name: str, expert: int) -> tuple[str, tuple[int, int, int]]:
    """Return the path of a layer's scores and the index of an expert's score for the last row. name: "affinity" or "corrected"."""
    return f"layers.{block}.ffn.{name}", (0, len(run.ids) - 1, expert)


def share_gap(run: Trace, name: str) -> float:
    """Return how far the shares are, in any block, from those that the scores `name` give: each over the chosen ones' sum, times the scale.

    name: "affinity", or "corrected" for scores with the correction.
    """

    def gaps() -> Iterator[float]:
        for block in sparse(run.runner.config):
            mine = tensor(run, block, name).double().gather(-1, tensor(run, block, "chosen"))
            yield largest_gap(mine / mine.sum(-1, keepdim=True) * spec_of(run, block).scale, tensor(run, block, "share"))

    return max(gaps())


def sum_gap(run: Trace, scale: float) -> float:
    """Return how far the sum of any token's shares is from `scale`."""
    sums = torch.cat([tensor(run, block, "share").double().sum(-1).flatten() for block in sparse(run.runner.config)])
    return float((sums - scale).abs().max())


def choices_changed(a: Trace, b: Trace) -> tuple[int, int]:
    """Return in how many rows of all blocks two runs chose other experts, and of how many."""
    pairs = [[tensor(run, block, "chosen").sort(-1)[0] for run in (a, b)] for block in sparse(a.runner.config)]
    return sum(int((x != y).any(-1).sum()) for x, y in pairs), sum(x[..., 0].numel() for x, _ in pairs)
