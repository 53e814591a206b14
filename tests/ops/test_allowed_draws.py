"""A token that a mask allows is chosen from the packed mask by a kernel, and is that of the whole row."""

import importlib
from typing import Any

import torch
from torch import Tensor

from pellucid.errors import UseError
from pellucid.ops import native
from pellucid.ops.sampling import stages as sample
from pellucid.ops.sampling.settings import Sampling
from pellucid.ops.sampling.stages import choose
from pellucid.ops.sampling.token_mask import TokenMask
from test_plan import needs_kernels
from tiny import swapped

ALLOWED = [
    Sampling(), Sampling(1.0, seed=1), Sampling(0.3, seed=2), Sampling(2.0, top_k=3, seed=3), Sampling(1.0, top_p=0.7, min_p=0.1, seed=4),
    Sampling(1.0, presence=0.5, seed=5),
]  # fmt: skip
SIZES = 50, 64, 1000


def allowed_faults() -> list[str]:
    """Return the rows for which a kernel's allowed token is not the whole row's."""
    draw, out = torch.Generator().manual_seed(3), list[str]()
    for case in range(60):
        size = SIZES[case % 4 % 3]
        x = torch.randint(-3, 3, (size,), generator=draw).to([torch.float32, torch.bfloat16][case // 3 % 2])  # with ties
        if case % 5 == 4:
            x[torch.randint(size, (20,), generator=draw)] = [-torch.inf, torch.inf, torch.nan][case % 3]
        mask = TokenMask.of(torch.rand(size, generator=draw) < [0.5, 0.02, 0.0, 1.0][case % 4])

        def answer(how: Sampling, best: int | None, x: Tensor = x, mask: TokenMask = mask) -> int | str:
            try:
                return choose(x, how, (1,), (0,) * 3, 0, best, mask)
            except UseError as error:
                return error.key

        for how in ALLOWED:
            short = answer(how, sample.top(x))
            with native.off():
                by_row = answer(how, None)
            if short != by_row:
                out.append(f"{case} {how}: {short} is not {by_row}")
    return out


@needs_kernels
def test_an_allowed_token_is_that_of_the_whole_row() -> None:
    """With the kernels of this machine, and those of the smallest set. The mutants take the largest of all, and draw without a mask."""
    library = importlib.import_module("pellucid.ops.native.library")
    for lib in {library.lib, library.load("avx2")} - {None}:
        with swapped(library, "lib", lib):
            assert allowed_faults() == []
    with swapped(sample, "largest_allowed", lambda logits, allowed: sample.top(logits)):
        assert any("temperature=0.0" in fault for fault in allowed_faults())
    honest = native.Draw.make

    def unmasked(self: native.Draw, call: Any) -> None:
        self.allowed = None
        honest(self, call)

    with swapped(native.Draw, "make", unmasked):
        assert any("temperature=1.0" in fault for fault in allowed_faults())


def test_a_packed_mask_is_its_flags() -> None:
    """Also where the last word has bits behind the vocabulary."""
    for size in (1, 31, 32, 33, 100):
        flags = torch.rand(size, generator=torch.Generator().manual_seed(size)) < 0.5
        mask = TokenMask.of(flags)
        assert torch.equal(mask.flags, flags) and [id in mask for id in range(size)] == flags.tolist()
        assert bool(mask) == bool(flags.any()) and not mask.without(range(size))
        assert not mask.without([0]).flags[0] and torch.equal(mask.without([0]).flags[1:], flags[1:])
