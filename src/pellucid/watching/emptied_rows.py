"""Rows of scores that a change left without a key: a softmax of minus infinities alone is no number, and the answer would be NaN.

layers.0.attn.scores[T=4] = -inf          nothing is left of row 4
layers.0.attn.scores[T=4, S=0:4] = -inf   its own key is
"""

import torch
from torch import Tensor

from pellucid.errors import UseError
from pellucid.watching.tap import here


def require_keys(scores: Tensor, present: Tensor, at: Tensor) -> None:
    """Raise a UseError if a watch's change of the running part's scores left a row without a key.

    scores [B H T S]: as the softmax takes them, with its sinks.  present [B 1 T S]: the pairs that the mask shows it.  at [B T]: positions.
    """
    if not here.calls:
        return
    parts = [(w, part) for w in here.watches if w.changes and (part := here.calls[-1].path.get(w)) is not None]
    path = next((part for w, part in parts if w.changes_of(f"{part}.scores".lstrip("."))), None)
    if path is None:
        return
    empty = torch.isneginf(scores).all(-1) & present.any(-1)
    if bool(empty.any()):
        batch, head, row = empty.nonzero()[0].tolist()
        token, texts = int(at[min(batch, len(at) - 1), row]), len(scores)
        every = bool(empty[batch, :, row].all())
        place = [*([f"B={batch}"] if texts > 1 else []), *([] if every else [f"H={head}"]), f"T={token}"]
        where, part = ", ".join(place), f"{path}." if path else ""
        rest = int(empty.sum()) - (int(empty[batch, :, row].sum()) if every else 1)
        raise UseError("change.emptied", path=f"{part}scores", at=where, other=f"{part}pattern[{where}] = 0", rows=rest)
