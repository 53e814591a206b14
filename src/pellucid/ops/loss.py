"""The loss of a language model, token by token: -log p(target), and the mean over the tokens that have a target.

    mask      1 0 1            softmax  p of every id            tokens   -log p(target) = log Σ e^logits - logits[target]
    target    0.7 - 0.1        of the target's id alone                   0.36  0  2.30      the loss: 2.66 / 2

Training computes the mean in one piece. A watch that wants its parts has them recomputed beside it, and the mean keeps its bits.
"""

from functools import partial

import torch
from torch import Tensor

from pellucid.ops.gate import SOFTMAX, part_of_row
from pellucid.ops.kinds import Operands, OpKind, plain
from pellucid.ops.precision import wide
from pellucid.watching.recomputing import gap, recomputing
from pellucid.watching.tap import as_reference, deferred, inside, note, tap
from pellucid.watching.terms import Index, Terms

NAMES = ("mask", "softmax", "target", "tokens")


def shared(m: Operands, own: str, spread: str) -> str:
    """Write what the target's id and, with label smoothing, all ids together add."""
    s = m.setting("smoothing", 0.0)
    return f"−{plain(round(1 - s, 12))} · {own} − {plain(s)} · {spread}" if s else f"−{own}"


TARGET = OpKind("target", lambda m: f"{m.x}[target]", labels={"share": lambda m: f"{m.x}[target]"})
LOSS = OpKind(
    "loss",
    lambda m: shared(m, f"log {m.inputs[1]}", f"mean_V log {m.inputs[2]}"),
    labels={
        "log_sum": lambda m: f"log Σ e^{m.x}",
        "target": lambda m: shared(m, f"{m.x}[target]", "").split(" − ")[0],
        "mean": lambda m: f"−{plain(m.setting('smoothing', 0.0))} · mean_V {m.x}",
        "none": lambda m: "0",
    },
)


def tapped_loss(loss: Tensor, logits: Tensor, targets: Tensor, smoothing: float, ignored: int) -> Tensor:
    """Return `loss`, the mean of logits [B T V] over the targets [B T] that are not `ignored`, after its parts were shown to watches.

    smoothing: the part of each target that all ids share.  Where a watch edits a part, the mean is the reference's.
    """
    mode = inside(*NAMES)
    reference = partial(loss_reference, logits, logits, targets, smoothing, ignored)
    if mode == "reference":
        with as_reference():
            return reference()
    if mode == "beside":
        with recomputing(loss) as compare:
            compare(reference())
    elif mode is not None:
        with deferred(lambda: gap(reference(), loss)):
            loss_reference(logits.to("meta"), logits, targets.to("meta"), smoothing, ignored)
    return loss


def loss_reference(logits: Tensor, named: Tensor, targets: Tensor, smoothing: float, ignored: int) -> Tensor:
    """Compute the loss step by step, with taps. named: the logits that the model has tapped, where `logits` are these on meta."""
    rows, ids = logits.to(wide(logits.dtype)), targets.clamp(min=0)[..., None]
    read = rows.detach()
    mask = tap(targets != ignored, "mask: B T")
    logprobs = rows.log_softmax(-1)
    own = logprobs.exp()
    p = tap(note(own, SOFTMAX.name, (named,), (), lambda i: part_of_row(read[i[:-1]].double(), i[-1])), "softmax: B T V")
    if p is not own:  # edited; else no logarithm is taken of a number that was rounded to 0
        logprobs = torch.where(p == own, logprobs, p.log())
    share = torch.where(mask, p.gather(-1, ids)[..., 0], 0)
    of_target = logprobs.gather(-1, ids)[..., 0]
    target = tap(note(share, TARGET.name, (p,), (), lambda i: Terms().plus(share=share.detach()[i])), "target: B T")
    if target is not share:
        of_target = torch.where(target == share, of_target, target.log())
    each = torch.where(mask, -(1 - smoothing) * of_target - smoothing * logprobs.mean(-1), 0)

    def terms(i: Index) -> Terms:
        row = read[i].double()
        if not mask[i]:
            return Terms().plus(none=0.0)
        given = Terms().plus(log_sum=row.logsumexp(0), target=-(1 - smoothing) * row[ids[i][0]])
        return given.plus(mean=-smoothing * row.mean()) if smoothing else given

    each = note(each, LOSS.name, (named, target, p, mask), (), terms, settings=lambda: {"smoothing": smoothing})
    return tap(each, "tokens: B T").sum() / mask.sum()
