"""The states of layers that keep one matrix of a text in place of rows of its tokens.

A page has two places for a state, of tokens at even and at odd positions. One has the state after the last token in the page; the other is
free for the next, so that a step of one token may run again.

    pages of 4 tokens, [2, 0]       pool   | . , S of tokens 0 … 5 | . , . | . , S of tokens 0 … 3 |       request "a" of 6 tokens

So a full page has the state at its end, from which a fork, or another text with the same beginning, can go on; and tables, references,
copies and the prefix cache are those of a layer with a window.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pellucid.batch.kv_cache import PagedRows


@dataclass(frozen=True)
class TextStates:
    """The rows of one text in a step, and where its state lies; of a plain batch all texts at once, whose states begin at zero.

    rows: its slice of T.  positions: LongTensor [B T], -1 for padding.  padded: whether there is any.
    pages: its rows in a pool of states [2·pages ...], which share one table; None keeps nothing.  request: None of a plain batch.
    """

    rows: slice
    positions: Tensor
    padded: bool = False
    pages: PagedRows | None = None
    request: object = None

    def first(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a copy of the states [B ...] before the first row: zeros at a text's start."""
        before = int(self.positions[0, 0]) - 1 if self.pages is not None else -1
        if self.pages is None or before < 0:
            return torch.zeros(len(self.positions), *shape, dtype=dtype, device=self.positions.device)
        return self.pages.pools[0][self.place(before)][None].clone()

    def place(self, position: int) -> int:
        """Return the row of the pool for the state after the token at a position."""
        assert self.pages is not None
        return 2 * int(self.pages.tables[position // self.pages.size]) + position % 2

    def keep(self, row: int, state: Tensor) -> None:
        """Store the state [1 ...] after a row, if the row ends its page or the step."""
        if self.pages is None:
            return
        position = int(self.positions[0, row])
        if row + 1 == self.positions.shape[1] or (position + 1) % self.pages.size == 0:
            self.pages.pools[0][self.place(position)] = state[0]


@dataclass
class States:
    """A handle on the states of one part: one entry for each text. batched: all texts for one call, of one row each."""

    texts: list[TextStates]
    batched: PagedRows | None = None


class MatrixState(nn.Module):
    """The place of a part's states [H K W] in a cache. window: that of the part's rows, so that both lie in the same pages."""

    def __init__(self, window: int, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.window, self.shape = window, shape


def stateful(module: nn.Module) -> bool:
    """True if a part of a model keeps a state."""
    return any(isinstance(part, MatrixState) for part in module.modules())
