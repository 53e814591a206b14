"""Bursts: several decode steps by one native call, while no text needs Python between its tokens.

    steps     plan, choice | Python | plan, choice | Python | plan, choice | Python
    a burst   plan, choice, plan, choice, plan, choice | Python

A burst ends before a choice that ends a text or that the kernel is not sure of, which is then made as that of a single step, and after
the step in which another thread calls. So it changes no text and delays no call by more than a step. A text that is read while it is
written gets the tokens of STREAMED at a time, others those of COLLECTED.
"""

from collections.abc import Sequence as Texts
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch

from pellucid.engine.requests import Sequence
from pellucid.ops import native
from pellucid.ops.native.library import HALF
from pellucid.ops.sampling.stages import native_draw

if TYPE_CHECKING:
    from pellucid.engine.plans import StepBuffers

STEPS = 32  # of one burst
STREAMED = 0.1  # seconds: no step of a burst begins later, so that a slow model's text does not come in jerks
COLLECTED = 1.0  # the same where no text is streamed: Ctrl-C waits for the end of a burst


def steps_alone(s: Sequence, speculates: bool) -> int:
    """Return the number of steps that a sequence may take before Python must look at it, apart from its pages.

    speculates: tokens are proposed to sequences that ask for them.
    """
    request, idle = s.request, 0 if s.pace is None else s.pace.idle
    if not s.written or s.pending != 1 or s.proposed or request.stepwise or request.logprobs is not None or request.watched is not None:
        return 1
    if request.constraint is not None or request.sampling.changes or (request.stops and s.written < request.least):
        return 1
    steps = request.new - s.written
    return min(steps, 1 + idle) if speculates and request.speculate else steps


class Burst:
    """The native call of a burst over one plan, and the memory behind its pointers.

    texts: one for each row; only their requests and indices count, so that it serves these texts until one ends.
    """

    def __init__(self, buffers: "StepBuffers", texts: Texts[Sequence], interrupt: np.ndarray) -> None:
        n, logits, best = len(texts), buffers.logits, buffers.best
        self.texts = [(s.request, s.index) for s in texts]
        self.written, self.drawn = torch.zeros(n, dtype=torch.long), torch.zeros(n, dtype=torch.long)
        self.counts = self.written.numpy()  # its memory, made once: each call of `numpy` takes 40 us in cold caches
        self.out = np.zeros((STEPS, n), np.int64)
        sampled = [not s.request.sampling.greedy for s in texts]
        self.draws = [
            native_draw(logits[r], best[r : r + 1], self.written[r : r + 1], self.drawn[r : r + 1], s.request.sampling, s.index)
            for r, s in enumerate(texts)
            if sampled[r]
        ]
        self.list = native.draw_list(self.draws)
        stops = [sorted(s.request.stops) for s in texts]
        numbers = sampled, [id for own in stops for id in own], list(accumulate(map(len, stops)))
        self.constants = [torch.tensor(t, dtype=torch.long) for t in numbers]
        self.interrupt = interrupt
        names = ("tokens", "positions", "lengths", "written", "best", "drawn", "sampled", "stops", "ends", "logits")
        tensors = buffers.tokens, buffers.positions, buffers.lengths, self.written, best, self.drawn, *self.constants
        self.words = {name: t.data_ptr() for name, t in zip(names, (*tensors, logits), strict=True)} | {
            "out": self.out.ctypes.data, "interrupt": interrupt.ctypes.data, "draws": self.list.ctypes.data,
            "draw_calls": 2 * len(self.draws), "rows": n, "width": logits.shape[1], "half": HALF[logits.dtype],
            "nanoseconds": int(1e9 * (STREAMED if any(s.request.streamed for s in texts) else COLLECTED)),
        }  # fmt: skip

    def serves(self, texts: Texts[Sequence]) -> bool:
        """True if it was made for these texts."""
        return len(texts) == len(self.texts) and all(s.request is r and s.index == i for s, (r, i) in zip(texts, self.texts, strict=True))

    def run(self, plan: native.Plan, texts: Texts[Sequence], steps: int) -> tuple[int, list[list[int]]]:
        """Run up to `steps` steps, the first on the inputs in the buffers. Returns their number, and of each row the tokens chosen."""
        self.counts[:] = [s.written for s in texts]
        done = plan.burst(self.words | {"steps": min(steps, STEPS)})
        chosen = self.out[:done].tolist()
        return done, [list(ids) for ids in zip(*(row for row in chosen if row[0] >= 0), strict=True)]
