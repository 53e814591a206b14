"""The loss of logits, a few rows at a time, is torch's cross-entropy of float32 logits to the bit, and holds no other table of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid.counting.training_extra import ROWS
from pellucid.counting.training_memory import training
from pellucid.documents.recipe_bill import recipe_bill
from pellucid.training import criterion, logits_loss
from pellucid.training.balance import balance_of
from pellucid.training.criterion import loss_of
from pellucid.training.logits_loss import LogitsLoss, parts
from pellucid.training.objectives import IGNORED, Causal
from pellucid.watching.watch import watch
from text_runs import recipe_of
from tiny import swapped
from training import DOCUMENTS, SETTINGS, WORDS, fresh

FACTOR = 1 / 3
DTYPES = [torch.float32, torch.float64, torch.bfloat16]


def given(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return logits of three parts and a rest, and targets: of a third of the rows none, and of a part of the rows none at all."""
    draw = torch.Generator().manual_seed(1)
    logits = (torch.randn(4 * ROWS + 7, 91, generator=draw, dtype=torch.float64) * 3).to(dtype).requires_grad_()
    targets = torch.randint(91, (len(logits),), generator=draw).masked_fill(torch.arange(len(logits)) % 3 == 1, IGNORED)
    targets[ROWS : 2 * ROWS] = IGNORED
    return logits, targets


def ours(dtype: torch.dtype, smoothing: float, over: bool, factor: float = FACTOR) -> tuple[Tensor, Tensor]:
    """Return our loss, and the logits' gradient of a third of it. factor: that the loss is told."""
    logits, targets = given(dtype)
    loss = LogitsLoss.apply(logits * 1, targets, smoothing, factor, over)
    (gradient,) = torch.autograd.grad(loss * FACTOR, logits)
    return loss.detach(), gradient


def torchs(dtype: torch.dtype, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return torch's of all widened rows at once."""
    logits, targets = given(dtype)
    x = logits.detach().to(torch.promote_types(dtype, torch.float32)).requires_grad_()
    loss = F.cross_entropy(x, targets, ignore_index=IGNORED, label_smoothing=smoothing)
    (gradient,) = torch.autograd.grad(loss * FACTOR, x)
    return loss.detach(), gradient.to(dtype)


def equal(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> bool:
    """True if losses and gradients are; a loss of narrow logits is summed in another order."""
    near = 1e-6 if a[1].dtype == torch.bfloat16 else 0.0
    return a[0].dtype == b[0].dtype and float(abs(a[0] / b[0] - 1)) <= near and a[1].dtype == b[1].dtype and torch.equal(a[1], b[1])


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_the_cross_entropy(dtype: torch.dtype, smoothing: float, over: bool) -> None:
    """Loss and gradient to the bit, in the logits' memory and beside it. Logits that are not widened give others."""
    assert equal(ours(dtype, smoothing, over), torchs(dtype, smoothing))
    if dtype == torch.bfloat16:
        with swapped(logits_loss, "wide", lambda dtype: dtype):
            assert not equal(ours(dtype, smoothing, over), torchs(dtype, smoothing))


def test_another_factor_than_was_said() -> None:
    """The gradient is multiplied, and has other bits."""
    loss, gradient = ours(torch.float64, 0.1, True, 0.7)
    wanted = torchs(torch.float64, 0.1)
    assert torch.equal(loss, wanted[0]) and float((gradient - wanted[1]).abs().max()) < 1e-15
    assert not equal(ours(torch.float32, 0.1, True, 0.7), torchs(torch.float32, 0.1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_few_rows_at_a_time(dtype: torch.dtype) -> None:
    """Parts without a target are left out; of narrow logits only rows with one are widened, each time into the same memory."""
    logits, targets = given(dtype)
    narrow, seen, place = dtype == torch.bfloat16, list[int](), set[tuple[int, ...]]()
    for rows, *own in parts(logits.detach(), targets):
        seen.extend(torch.arange(len(logits))[rows].tolist())
        place.add(tuple(x.data_ptr() for x in own[0 if narrow else 1 :]))
        assert len(own[0]) <= ROWS and all(x.shape == own[0].shape for x in own)
        assert narrow or own[0].data_ptr() == logits[rows].data_ptr()
    assert len(place) == 1
    real = (targets != IGNORED).nonzero()[:, 0].tolist()
    assert seen == real if narrow else sorted(seen) == [i for i in range(len(logits)) if not ROWS <= i < 2 * ROWS]


def test_the_gradient_takes_the_place_of_logits_that_are_not_read() -> None:
    """A watch reads them afterwards, and what saved them for a backward pass of its own is told."""
    logits, targets = given(torch.float32)
    with torch.no_grad():
        before = logits.detach().clone()
        LogitsLoss.apply(logits.detach(), targets, 0.0, 1.0, False)
        assert torch.equal(logits, before)
    table = logits * 1
    (gradient,) = torch.autograd.grad(LogitsLoss.apply(table, targets, 0.0, 1.0, True), table)
    assert gradient.data_ptr() == table.data_ptr()
    saved = logits.exp()  # saves its result
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        LogitsLoss.apply(saved, targets, 0.0, 1.0, True).backward()


def test_a_watch_reads_logits_and_changes_no_bit() -> None:
    """Nor does a forward without gradients touch them. Without the question a watch would have gradients for logits."""
    batch, model = Causal(WORDS).batch([DOCUMENTS[i] for i in (0, 5, 8)]), fresh()

    def gradients() -> list[Tensor]:
        return list(torch.autograd.grad(loss_of(model, batch), list(model.parameters())))

    plain = gradients()
    with torch.no_grad():
        logits = model(*batch.inputs)
    with watch(model, only="logits") as seen:
        watched = gradients()
    assert all(map(torch.equal, plain, watched)) and torch.equal(seen["logits"].value, logits)
    with swapped(criterion, "here", Unwatched()), watch(model, only="logits") as seen:
        gradients()
    assert not torch.equal(seen["logits"].value, logits)


class Unwatched:
    """A thread that seems not to be watched."""

    watches = ()


def test_a_part_knows_its_share(tmp_path: Path) -> None:
    """The gradient of each part of a step has the bits of torch's, which multiplies the loss."""
    batches, model = [Causal(WORDS).batch([DOCUMENTS[i]]) for i in (0, 5, 8)], fresh()
    total = sum(map(criterion.targets_in, batches))

    def by_torch() -> Iterator[Tensor]:
        for batch in batches:
            logits = model(*batch.inputs).flatten(0, 1)
            yield F.cross_entropy(logits, batch.targets.flatten(), ignore_index=IGNORED) * (criterion.targets_in(batch) / total)

    def summed(parts: Iterator[Tensor]) -> list[Tensor]:
        model.zero_grad()
        for loss in parts:
            loss.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    def own() -> list[Tensor]:
        return summed(part.differentiated for part in criterion.losses(criterion.PLAIN, model, batches, balance_of(model, SETTINGS)))

    wanted = summed(by_torch())
    assert all(map(torch.equal, own(), wanted))
    with swapped(criterion, "loss_of", lambda model, batch, smoothing, share: loss_of(model, batch, smoothing)):
        assert not all(map(torch.equal, own(), wanted))


def test_the_bill_has_the_loss(tmp_path: Path) -> None:
    """A table of logits, and a few rows; all are held at the loss."""
    for dtype, each, few in (("float32", 4, 8), ("bfloat16", 2, 14)):
        made = recipe_bill(recipe_of(tmp_path, train__dtype=f'"{dtype}"'))
        numbers, s = training(made.bill, made.way), made.bill.setting
        assert int(numbers["memory.loss"]) == (each * s.batch * s.context + few * min(ROWS, s.batch * s.context)) * made.bill.config.vocab
        parts = [int(n) for name, n in numbers.items() if name.startswith("memory.") and not name.startswith(("memory.at", "memory.total"))]
        assert int(numbers["memory.at_loss"]) == sum(parts) - int(numbers["memory.gradients"])
        moments = [int(numbers[f"memory.at_{name}"]) for name in ("loss", "backward", "update")]
        assert int(numbers["memory.total"]) == max(moments)
