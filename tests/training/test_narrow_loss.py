"""The loss of narrow logits is the cross-entropy of widened ones, row by row, and holds no widened matrix."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid.counting.training_memory import BUFFERS, ROWS, training
from pellucid.documents.recipe_bill import recipe_bill
from pellucid.training import narrow_loss
from pellucid.training.narrow_loss import NarrowLoss, widened
from pellucid.training.objectives import IGNORED
from text_runs import recipe_of
from tiny import swapped


def given(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return logits of three parts and a rest, and targets of which a third is none."""
    draw = torch.Generator().manual_seed(1)
    logits = (torch.randn(4 * ROWS + 7, 91, generator=draw, dtype=torch.float64) * 3).to(dtype).requires_grad_()
    targets = torch.randint(91, (len(logits),), generator=draw)
    return logits, targets.masked_fill(torch.arange(len(logits)) % 3 == 1, IGNORED)


def both(dtype: torch.dtype, smoothing: float) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return loss and gradient of our own, and of torch's on all widened rows at once."""
    logits, targets = given(dtype)
    own = NarrowLoss.apply(logits, targets, smoothing)
    (gradient,) = torch.autograd.grad(own * 0.7, logits)
    x = logits.detach().to(torch.promote_types(dtype, torch.float32)).requires_grad_()
    other = F.cross_entropy(x, targets, ignore_index=IGNORED, label_smoothing=smoothing)
    (wanted,) = torch.autograd.grad(other * 0.7, x)
    return (own.detach(), gradient), (other.detach(), wanted.to(dtype))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_it_is_the_cross_entropy(smoothing: float) -> None:
    """In float64 at 1e-12; in bfloat16 the same gradient, to the bit. Logits that are not widened give another one."""
    (own, gradient), (other, wanted) = both(torch.float64, smoothing)
    assert abs(float(own - other)) < 1e-12 and float((gradient - wanted).abs().max()) < 1e-12
    (own, gradient), (other, wanted) = both(torch.bfloat16, smoothing)
    assert own.dtype == torch.float32 and gradient.dtype == torch.bfloat16 and float(abs(own / other - 1)) < 1e-6
    assert torch.equal(gradient, wanted)
    with swapped(narrow_loss, "wide", lambda dtype: dtype):
        (own, gradient), _ = both(torch.bfloat16, smoothing)
        assert float(abs(own / other - 1)) > 1e-5 or not torch.equal(gradient, wanted)


def test_no_matrix_is_widened() -> None:
    """ROWS rows at a time are widened, each time into the same memory; the last few into its beginning."""
    logits, targets = given(torch.bfloat16)
    seen = [(len(rows), [x.data_ptr() for x in own]) for rows, own in widened(logits, targets, BUFFERS)]
    assert {tuple(places) for _, places in seen} == {tuple(seen[0][1])} and len(set(seen[0][1])) == BUFFERS
    assert max(n for n, _ in seen) == ROWS and sum(n for n, _ in seen) == int((targets != IGNORED).sum())
    sizes = list[int]()

    def sized(*a: Any) -> Any:
        for rows, own in widened(*a):
            sizes.extend(x.numel() for x in own)
            yield rows, own

    with swapped(narrow_loss, "widened", sized):
        NarrowLoss.apply(logits, targets, 0.0).backward()
    assert max(sizes) == ROWS * logits.shape[1] and len(sizes) == (2 + BUFFERS) * len(seen)


def test_the_bill_has_the_loss(tmp_path: Path) -> None:
    """Of float32 logits three matrices, of bfloat16 ones two of half the bytes and a few widened rows; all are held at the loss."""
    for dtype, each, few in (("float32", 12, 0), ("bfloat16", 4, 14)):
        made = recipe_bill(recipe_of(tmp_path, train__dtype=f'"{dtype}"'))
        numbers, s = training(made.bill, made.way), made.bill.setting
        assert int(numbers["memory.loss"]) == (each * s.batch * s.context + few * min(ROWS, s.batch * s.context)) * made.bill.config.vocab
        parts = [int(n) for name, n in numbers.items() if name.startswith("memory.") and not name.startswith(("memory.at", "memory.total"))]
        assert int(numbers["memory.at_loss"]) == sum(parts) - int(numbers["memory.gradients"])
        moments = [int(numbers[f"memory.at_{name}"]) for name in ("loss", "backward", "update")]
        assert int(numbers["memory.total"]) == max(moments)
