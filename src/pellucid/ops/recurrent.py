"""What layers other than attention need: rows moved to later places, products number by number, a blend of two tensors."""

import torch
from torch import Tensor

from pellucid.ops import native
from pellucid.ops.kinds import OpKind
from pellucid.watching.tap import note
from pellucid.watching.terms import Index, Terms

SHIFTED = OpKind("shifted", lambda m: f"{m.x}[t − {m.setting('by', 'by')}]", product=True)
TIMES = OpKind("times", lambda m: " · ".join(m.inputs), labels={"a": lambda m: m.inputs[0], "b": lambda m: m.inputs[1]})
BLENDED = OpKind("blended", lambda m: f"{m.inputs[2]} · {m.inputs[1]} + (1 − {m.inputs[2]}) · {m.inputs[0]}")


def shifted(x: Tensor, by: int) -> Tensor:
    """Move each row of x [B T D] to the place `by` later; zeros come first, and rows beyond the last place are dropped."""
    by = min(by, x.shape[1])
    y = torch.cat([x.new_zeros(x.shape[0], by, x.shape[2]), x[:, : x.shape[1] - by]], 1)

    def terms(i: Index) -> Terms:
        return Terms(x=x[i[0], i[1] - by, i[2]] if i[1] >= by else 0.0)

    return note(y, SHIFTED.name, (x,), (), terms, settings=lambda: {"by": by})


def times(a: Tensor, b: Tensor) -> Tensor:
    """Multiply two tensors of one shape, number by number."""
    y = native.times(a, b) if native.fits_add(a, b) else a * b
    return note(y, TIMES.name, (a, b), (), lambda i: Terms(a=a[i], b=b[i]))


def blended(new: Tensor, old: Tensor, keep: Tensor) -> Tensor:
    """Return keep · old + (1 − keep) · new, number by number."""

    def terms(i: Index) -> Terms:
        return Terms(keep=keep[i], old=old[i]).plus(new=(1 - keep[i].double()) * new[i].double())

    return note(keep * old + (1 - keep) * new, BLENDED.name, (new, old, keep), (), terms)
