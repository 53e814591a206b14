"""A token that a mask allows is chosen from the allowed logits alone, and is that of the whole row."""

import torch
from torch import Tensor

from pellucid.errors import UseError
from pellucid.ops.sampling import stages as sample
from pellucid.ops.sampling.settings import Sampling
from pellucid.ops.sampling.stages import choose
from tiny import swapped

ALLOWED = [
    Sampling(), Sampling(1.0, seed=1), Sampling(0.3, seed=2), Sampling(2.0, top_k=3, seed=3), Sampling(1.0, top_p=0.7, min_p=0.1, seed=4),
]  # fmt: skip


def allowed_faults() -> list[str]:
    """Return the rows for which the short way to an allowed token is not the whole row's."""
    draw, out = torch.Generator().manual_seed(3), list[str]()
    for case in range(60):
        x = torch.randint(-3, 3, (50,), generator=draw).float()  # with ties
        if case % 5 == 4:
            x[torch.randint(50, (20,), generator=draw)] = [-torch.inf, torch.inf, torch.nan][case % 3]
        mask = torch.rand(50, generator=draw) < [0.5, 0.02, 0.0][case % 3]

        def answer(how: Sampling, best: int | None, x: Tensor = x, mask: Tensor = mask) -> int | str:
            try:
                return choose(x, how, (1,), (0,) * 3, 0, best, mask)
            except UseError as error:
                return error.key

        for how in ALLOWED:
            short = answer(how, sample.top(x))
            with swapped(sample, "few_allowed", lambda allowed: None):
                by_row = answer(how, None)
            if short != by_row:
                out.append(f"{case} {how}: {short} is not {by_row}")
    return out


def test_an_allowed_token_is_that_of_the_whole_row() -> None:
    """The mutants take the largest of all, and forget the last ids."""
    assert allowed_faults() == []
    with swapped(sample, "largest_allowed", lambda logits, best, allowed: best):
        assert allowed_faults()
    few = sample.few_allowed
    with swapped(sample, "few_allowed", lambda allowed: None if (ids := few(allowed)) is None or ids[0] > 30 else ids[ids <= 30]):
        assert any("temperature=1.0" in fault for fault in allowed_faults())
