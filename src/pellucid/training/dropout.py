"""Dropout of adapters: in a step of training a share of a matrix' input is 0 before A, and the rest larger (arXiv 1207.0580).

    z = x Wᵀ + b + s·((x ∘ m) Aᵀ) Bᵀ        m: 0 with the share p, else 1 / (1 − p)

m is a function of the run's seed, the step, the micro-batch and the path of A, so a step that is taken again has the same, and there is no
state of a generator to save. Outside of a step nothing is left out.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b

import torch
from torch import Tensor, nn

from pellucid.nn.adapted import Addition


def mask(x: Tensor, share: float, seed: str) -> Tensor:
    """Return a mask of the shape of x, in its dtype: 0 with the probability `share`, else 1 / (1 − share)."""
    number = int.from_bytes(blake2b(seed.encode(), digest_size=7).digest(), "little")
    drawn = torch.randint(1 << 24, x.shape, generator=torch.Generator().manual_seed(number))
    return ((drawn >= share * (1 << 24)).to(x.dtype) / (1 - share)).to(x.device)


class Dropout:
    """The dropout of a model's adapters. seed: of the run.  step: of the parts that are drawn for, from 0; the loop sets it."""

    def __init__(self, model: nn.Module, seed: int) -> None:
        self.seed, self.step = seed, 0
        self.additions = [m for m in model.modules() if isinstance(m, Addition) and m.dropout]

    @contextmanager
    def drawn(self, micro: int) -> Iterator[None]:
        """Let the forward inside have the masks of one micro-batch, from 0."""
        try:
            for one in self.additions:
                one.drawn = partial(mask, share=one.dropout, seed=f"{self.seed}:{self.step}:{micro}:{one.place}")
            yield
        finally:
            for one in self.additions:
                one.drawn = None
