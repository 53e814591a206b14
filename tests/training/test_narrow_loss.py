"""The loss of narrow logits is the cross-entropy of widened ones, row by row, and holds no widened matrix."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid.counting.training_memory import training
from pellucid.documents.recipe_bill import recipe_bill
from pellucid.training import narrow_loss
from pellucid.training.narrow_loss import ROWS, NarrowLoss
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
    """No float32 tensor of more than ROWS rows is made, in neither direction."""
    most = list[int]()

    def sized(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        most.append(len(logits))
        return total(logits, targets, smoothing)

    total = narrow_loss.total
    logits, targets = given(torch.bfloat16)
    with swapped(narrow_loss, "total", sized):
        NarrowLoss.apply(logits, targets, 0.0).backward()
    assert max(most) == ROWS and sum(most) == 2 * int((targets != IGNORED).sum())


def test_the_bill_has_the_loss(tmp_path: Path) -> None:
    """Of float32 logits three matrices, of bfloat16 ones two of half the bytes; both are in the total."""
    for dtype, each in (("float32", 12), ("bfloat16", 4)):
        made = recipe_bill(recipe_of(tmp_path, train__dtype=f'"{dtype}"'))
        numbers, s = training(made.bill, made.way), made.bill.setting
        assert int(numbers["memory.loss"]) == each * s.batch * s.context * made.bill.config.vocab
        parts = [int(n) for name, n in numbers.items() if name.startswith("memory.") and name != "memory.total"]
        assert int(numbers["memory.total"]) == sum(parts)
