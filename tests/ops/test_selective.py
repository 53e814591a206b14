"""Mamba-1's selective scan beside the formula written out, its terms, its gradients, and what a mutant of it changes."""

from dataclasses import replace
from importlib import import_module

import pytest
import torch
from torch import Tensor

from pellucid import ops
from pellucid.batch.states import States, TextStates
from pellucid.ops.scan import Recurrence
from pellucid.watching.tap import tap
from pellucid.watching.watch import watch
from test_ssd import drawn
from tiny import far, swapped

KEY, VALUE, ROWS = 5, 7, 9
SELECTIVE = import_module("pellucid.ops.selective")


def operands(dtype: torch.dtype = torch.float64, rows: int = ROWS) -> list[Tensor]:
    """Return x, b, c, dt, decay and skip of two texts."""
    x, b, c = (drawn(i, 2, rows, *sizes, dtype=dtype) for i, sizes in enumerate([(1, VALUE), (KEY,), (KEY,)]))
    dt = ops.softplus(drawn(3, 2, rows, VALUE, dtype=dtype), drawn(4, VALUE, dtype=dtype))
    return [x, b, c, dt, ops.decay(dt, drawn(5, KEY, VALUE, dtype=dtype) - 2), drawn(6, VALUE, dtype=dtype)]


def states(rows: int = ROWS) -> States:
    """Return the states of two texts that begin here."""
    return States([TextStates(slice(None), torch.arange(rows).expand(2, rows))])


def written_out(x: Tensor, b: Tensor, c: Tensor, dt: Tensor, decay: Tensor, skip: Tensor) -> Tensor:
    """Return y by sums over earlier rows: each is written once, and fades by all decays behind it."""
    total = decay.log().cumsum(1)
    faded = (total[:, :, None] - total[:, None]).exp() * torch.ones(x.shape[1], x.shape[1], dtype=x.dtype).tril()[None, :, :, None, None]
    wrote = b[..., None] * (dt * x[:, :, 0])[:, :, None]
    return torch.einsum("btk,btskw,bskw->btw", c, faded, wrote)[:, :, None] + skip * x


def test_decays_are_each_numbers_own() -> None:
    dt, log_rate = drawn(1, 2, 3, VALUE).exp(), drawn(2, KEY, VALUE)
    y = ops.decay(dt, log_rate)
    for b, t, k, w in ((0, 0, 0, 0), (1, 2, 4, 6), (0, 1, 3, 2)):
        assert abs(float(y[b, t, k, w]) - float((-log_rate[k, w].exp() * dt[b, t, w]).exp())) < 1e-15


def test_the_scan_is_its_sums() -> None:
    given = operands()
    right = written_out(*given)
    assert far(ops.selective_scan(*given, states()), right) < 1e-12
    assert far(ops.selective_scan(*operands(torch.float32), states()), right) < 1e-5


MUTANTS: dict[str, Recurrence] = {
    "a row is what the state lacks": replace(SELECTIVE.HOW, corrects=True),
    "another scale": replace(SELECTIVE.HOW, scale=1.1),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_seen(mutant: str) -> None:
    given = operands()
    with swapped(SELECTIVE, "HOW", MUTANTS[mutant]):
        assert far(ops.selective_scan(*given, states()), written_out(*given)) > 0.01


def test_one_decay_for_all_keys_is_seen_mutant() -> None:
    *given, decay, skip = operands()
    assert far(ops.selective_scan(*given, decay[:, :, :1].expand_as(decay), skip, states()), written_out(*given, decay, skip)) > 0.01


def test_gradients_of_the_scan() -> None:
    given = [x.detach().requires_grad_() for x in operands(rows=3)]
    assert torch.autograd.gradcheck(lambda *x: ops.selective_scan(*x, states(3)), given, fast_mode=True)


@torch.no_grad()
def test_terms_are_the_cells() -> None:
    """A cell of a state is what is left of it and what is written; a cell of y what is read and what is skipped."""

    class Part(torch.nn.Module):
        def forward(self, *x: Tensor) -> Tensor:
            return tap(ops.selective_scan(*x, states()), "y: B T H W")

    part = Part()
    with watch(part, terms=True) as seen:
        part(*operands())
    for path, cells in {"state": ((1, 4, 0, 3, 2), (0, 0, 0, 0, 6)), "y": ((1, 5, 0, 6), (0, 0, 0, 0))}.items():
        terms, value = seen[path].terms, seen[path].value
        assert terms is not None and seen[path].dims == {"state": "B T H K W", "y": "B T H W"}[path]
        for i in cells:
            assert abs(terms(i).total() - float(value[i])) < 1e-12
