"""Fast twins for a draw from the logits of a vocabulary: float32 [N], summed in float64.

Sums have a relative error below 1e-12, so a choice with a larger margin is the same in any arithmetic; without it there is none.
"""

from collections.abc import Callable, Sequence
from math import inf

import numpy as np
import torch
from torch import Tensor

from pellucid.ops.native import library
from pellucid.ops.native.library import HALF, call
from pellucid.ops.native.twins import address, fits
from pellucid.ops.precision import wide

RUN = 256  # numbers in one sum, as in sample.h
SURE = 1e-9  # of the total; torch's sums differ by less than 1e-10


def fits_row(x: Tensor) -> bool:
    return x.ndim == 1 and x.dtype is wide(torch.bfloat16) and len(x) > 0 and fits(x)


def cooled(x: Tensor, top: float, by: float) -> Tensor:
    """Compute (x - top) / by, rounding the difference and the quotient."""
    y = torch.empty_like(x)
    call("cool", 0, (x,), (y,), x=x.data_ptr(), y=y.data_ptr(), n=len(x), top=top, by=by)
    return y


def indices_between(x: Tensor, low: float, high: float) -> Tensor:
    """Return the indices of the numbers of x [N] from low to high, both included and rounded to float32."""
    to, count = torch.empty(len(x), dtype=torch.long), torch.empty(1, dtype=torch.long)
    call(
        "indices_between", 0, (x,), (to, count),
        x=x.data_ptr(), to=to.data_ptr(), count=count.data_ptr(), n=len(x), low=low, high=high,
    )  # fmt: skip
    return to[: int(count)]


def fits_allowed(x: Tensor) -> bool:
    return x.ndim == 1 and len(x) > 0 and fits(x)


def largest_allowed(x: Tensor, words: Tensor) -> int:
    """Return the lowest index of the largest of x [N] that a mask allows; -1 if that is not finite, or one of them is NaN.

    words: a bit for each number, int32 (see sampling.token_mask).
    """
    to = torch.empty(1, dtype=torch.long)
    call(
        "largest_allowed", HALF[x.dtype], (x, words), (to,), x=x.data_ptr(), allowed=words.data_ptr(), to=to.data_ptr(), n=len(x)
    )  # fmt: skip
    return int(to)


class Draw:
    """A draw of one row's next token from its logits, as two native calls, `runs` and `draw`, and the memory behind their pointers.

    x: the row [N].  best: where its largest number is, of those allowed.  written: the step of the draw.  to: receives the token, or -1
    if it is not sure.  by: the temperature, 0 for none.  k, p, near: the bounds of top_k, top_p and ln(min_p), 0, 1 and -inf for none.
    state: the seed's.  allowed: the words of a mask, None if all tokens are allowed.
    """

    def __init__(
        self, x: Tensor, best: Tensor, written: Tensor, to: Tensor, state: int, by: float = 0.0, k: int = 0, p: float = 1.0,
        near: float = -inf, allowed: Tensor | None = None,
    ) -> None:  # fmt: skip
        n, runs = len(x), -(-len(x) // RUN)
        self.x, self.best, self.written, self.to, self.state = x, best, written, to, signed(state)
        self.by, self.k, self.p, self.near, self.allowed = by, k, p, near, allowed
        self.y, self.largest, self.masses = torch.empty(n), torch.empty(runs), torch.empty(runs, dtype=torch.float64)

    def run(self) -> None:
        """Draw now."""
        self.make(call)

    def make(self, call: Callable[..., None]) -> None:
        """Make both calls, by a function with the arguments of `library.call`."""
        x, y, largest, masses, best, n = self.x, self.y, self.largest, self.masses, self.best, len(self.x)
        reads = (x, best) if self.allowed is None else (x, best, self.allowed)
        call(
            "runs", HALF[x.dtype], reads, (y, largest, masses), x=x.data_ptr(), best=best.data_ptr(), allowed=address(self.allowed),
            y=y.data_ptr(), largest=largest.data_ptr(), masses=0 if 0 < self.k < n else masses.data_ptr(), n=n, by=self.by,
        )  # fmt: skip
        call(
            "draw", 0, (y, largest, masses, best, self.written), (self.to,), best=best.data_ptr(), y=y.data_ptr(),
            largest=largest.data_ptr(), masses=masses.data_ptr(), written=self.written.data_ptr(), to=self.to.data_ptr(), n=n, k=self.k,
            state=self.state, p=self.p, near=self.near, margin=SURE,
        )  # fmt: skip


def draw_list(draws: Sequence[Draw]) -> np.ndarray:
    """Return the calls of several draws as one list of words, two calls each: first `runs` of all rows, then the draws."""
    lines: dict[str, list[np.ndarray]] = {"runs": [], "draw": []}

    def pack(name: str, half: int, reads: object, writes: object, /, **words: float) -> None:
        assert library.lib is not None
        lines[name].append(np.frombuffer(bytearray(library.lib.ops[name].line(half, words)), np.int64))

    for d in draws:
        d.make(pack)
    for line in lines["draw"]:
        line[2] = len(draws)  # it waits for these calls: see walk.h
    return np.concatenate([np.zeros(0, np.int64), *lines["runs"], *lines["draw"]])


def signed(n: int) -> int:
    """Return the number whose 64 bits are those of n."""
    return n - 2**64 if n >= 2**63 else n
