"""The parts of a loss, by hand; watching them changes no bit of it, and an edit of one acts."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pellucid import ops
from pellucid.analysis.op_source import op_source
from pellucid.documents.formula import formula
from pellucid.documents.summands import labels
from pellucid.ops import loss as loss_op
from pellucid.watching.tap import after, tap
from pellucid.watching.watch import Watch, watch
from tiny import swapped

LOGITS = torch.randn(2, 5, 11, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 4
TARGETS = torch.tensor([[3, 0, -100, 10, 7], [-100, 1, 1, 5, -100]])


class Head(nn.Module):
    """Logits that are learnt themselves, with their loss after the forward as training has it."""

    axes = {"bias": "V"}

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(11, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return tap(ops.add(tap(x, "x: B T V"), self.bias), "logits: B T V")

    def loss(self, smoothing: float = 0.0) -> Tensor:
        logits = self(LOGITS.to(self.bias.dtype))
        loss = F.cross_entropy(logits.flatten(0, 1), TARGETS.flatten(), ignore_index=-100, label_smoothing=smoothing)
        with after(self, "loss", None):
            return ops.tapped_loss(loss, logits, TARGETS, smoothing, -100)


def by_hand(smoothing: float) -> dict[str, Tensor]:
    """Each part, number by number."""
    p, real = LOGITS.exp() / LOGITS.exp().sum(-1, keepdim=True), TARGETS != -100
    target, tokens = torch.zeros(2, 5, dtype=torch.float64), torch.zeros(2, 5, dtype=torch.float64)
    for b, t in real.nonzero().tolist():
        target[b, t] = p[b, t, TARGETS[b, t]]
        tokens[b, t] = -(1 - smoothing) * target[b, t].log() - smoothing * sum(x.log() for x in p[b, t]) / 11
    return {"loss.mask": real, "loss.softmax": p, "loss.target": target, "loss.tokens": tokens}


def shown(smoothing: float, **how: object) -> tuple[Watch, Tensor, Head]:
    head = Head()
    with watch(head, grad=True, terms=True, **how) as seen:  # type: ignore[arg-type]
        loss = head.loss(smoothing)
        loss.backward()
    return seen, loss, head


def gaps(smoothing: float) -> float:
    """The largest difference of a part, of its terms and of the mean from those by hand."""
    seen, loss, _ = shown(smoothing)
    out = [abs(float(by_hand(smoothing)["loss.tokens"].sum() / 7 - loss.detach()))]
    for path, wanted in by_hand(smoothing).items():
        s = seen[path]
        out.append(float((s.value.double() - wanted.double()).abs().max()))
        if s.terms is not None:
            out += [abs(s.terms(tuple(i)).total() - float(wanted[tuple(i)])) for i in torch.ones(s.shape).nonzero().tolist()]
    return max(out)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_parts(smoothing: float) -> None:
    """Values and terms at 1e-12; a mutant that counts rows without a target is seen."""
    assert gaps(smoothing) < 1e-12
    with swapped(loss_op, "loss_reference", unmasked(loss_op.loss_reference)):
        assert gaps(smoothing) > 1e-2
    seen, _, _ = shown(smoothing)
    assert all(s.source == "recomputed" and s.error is not None and s.error < 1e-12 for s in seen if s.path.startswith("loss."))
    each = seen["loss.tokens"]
    assert each.grad is not None and torch.allclose(each.grad, torch.full((2, 5), 1 / 7, dtype=torch.float64))
    assert seen["loss.softmax"].inputs == ("logits",) and each.inputs == ("logits", "loss.target", "loss.softmax", "loss.mask")


def unmasked(reference: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def wrong(logits: Tensor, named: Tensor, targets: Tensor, smoothing: float, ignored: int) -> Tensor:
        return reference(logits, named, targets.clamp(min=0), smoothing, ignored)

    return wrong


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("inside", ["beside", "listed"])
def test_watching_changes_no_bit(inside: str, dtype: torch.dtype) -> None:
    """Of the loss and of its gradient; a listed part is computed when it is asked for."""
    plain, other = Head(dtype), Head(dtype)
    plain.loss(0.1).backward()
    with watch(other, grad=True, inside=inside) as seen:
        loss = other.loss(0.1)
        loss.backward()
    assert torch.equal(loss, plain.loss(0.1)) and plain.bias.grad is not None and other.bias.grad is not None
    assert torch.equal(plain.bias.grad, other.bias.grad)
    each = seen["loss.tokens"]
    if inside == "listed":
        assert each.value.device.type == "meta" and each.later is not None
        each = each.later()
        assert each.inputs == ("logits", "loss.target", "loss.softmax", "loss.mask")
    assert torch.isclose(each.value.sum() / 7, loss.to(each.value.dtype), rtol=1e-2)
    with watch(other, only="logits") as few:
        other.loss()
    assert few.paths() == ["logits"]


def test_an_edit_acts() -> None:
    """Of the mask, a probability, or a token's loss: the reference's mean is another, and only where it was edited."""
    head, first = Head(), (torch.arange(10) == 0).view(2, 5)
    tokens = by_hand(0.0)["loss.tokens"]
    for path, edit, wanted in (
        ("loss.tokens", lambda x: x + first, (tokens.sum() + 1) / 7),
        ("loss.mask", lambda x: x & ~first, (tokens.sum() - tokens[0, 0]) / 6),
        ("loss.target", lambda x: torch.where(first, 0.5, x), (tokens.sum() - tokens[0, 0] - torch.tensor(0.5).log()) / 7),
        ("loss.softmax", lambda x: torch.where(first[..., None], 0.25, x), (tokens.sum() - tokens[0, 0] - torch.tensor(0.25).log()) / 7),
    ):
        with watch(head, edit={path: edit}) as seen:
            loss = head.loss()
        assert abs(float((loss - wanted).detach())) < 1e-7 and seen[path].source == "edited"


def test_far_logits() -> None:
    """A target whose probability is rounded to 0 has a finite loss, watched as plain."""
    head = Head(torch.float32)
    with torch.no_grad():
        head.bias[3] = -500.0
    with watch(head, grad=True) as seen:
        head.loss().backward()
    assert seen["loss.target"].value[0, 0] == 0 and 400 < float(seen["loss.tokens"].value[0, 0].detach()) < 600
    assert head.bias.grad is not None and bool(head.bias.grad.isfinite().all())


def test_how_it_is_written() -> None:
    """Formulas, the names of a cell's summands, and the source that is shown."""
    for smoothing, text, named in (
        (0.0, "−log loss.target", {"log_sum": "log Σ e^logits", "target": "−logits[target]", "none": "0"}),
        (
            0.1,
            "−0.9 · log loss.target − 0.1 · mean_V log loss.softmax",
            {"target": "−0.9 · logits[target]", "mean": "−0.1 · mean_V logits"},
        ),
    ):
        seen, _, _ = shown(smoothing)
        each = seen["loss.tokens"]
        assert formula(each, {}) == text and {name: labels(each, {})(name) for name in named} == named
        assert formula(seen["loss.softmax"], {}) == "softmax(logits)" and formula(seen["loss.target"], {}) == "loss.softmax[target]"
        code = op_source(each)
        assert code is not None and code.name == "loss_reference"
