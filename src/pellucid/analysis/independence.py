"""Whether a part computes each token's row by itself: what a changed neighbour moves, and what is left when a row runs alone."""

from typing import Any

import torch
from torch import Tensor

from pellucid.batch.step import Step
from pellucid.tracing import Trace

ATTENTION = "layers.0.attn"


def reads(run: Trace, part: str) -> str:
    """Return the path of the tensor that a part of a recorded run reads: the first operand inside the part that lies outside of it."""
    inside = [s for s in run if s.step == 0 and s.path.startswith(f"{part}.")]
    return next(path for s in inside for path in s.inputs if not path.startswith(f"{part}."))


def rows_of(run: Trace, part: str = ATTENTION) -> Tensor:
    """Return the rows [1 T D] that a part of a recorded run reads."""
    x: Tensor = run.all(reads(run, part))[0].value
    return x


def step_of(x: Tensor) -> Step:
    """Return a step for rows x [1 T D], of which a part reads the positions alone."""
    return Step.plain(torch.zeros(x.shape[:2], dtype=torch.long, device=x.device))


def row_gaps(a: Tensor, b: Tensor) -> list[float]:
    """Return the largest difference in each row of two tensors [1 T D]."""
    gaps: list[float] = (a[0].double() - b[0].double()).abs().amax(-1).tolist()
    return gaps


def alone_gaps(run: Trace, part: str) -> list[float]:
    """Run a part on each row of a recorded run alone, and return the largest difference from that row of the recorded output."""
    module: Any = run.runner.module.get_submodule(part)
    x = rows_of(run, part)
    step = step_of(x[:, :1])
    with torch.no_grad():
        rows = [module(x[:, t : t + 1], step) for t in range(x.shape[1])]
    return row_gaps(torch.cat(rows, 1), run.all(part)[0].value)


def largest_beside(gaps: list[float], row: int) -> float:
    """Return the largest difference of the rows other than `row`; 0 if there is none."""
    return max((gap for t, gap in enumerate(gaps) if t != row), default=0.0)
