"""The tokens that may come next, a bit each: a vocabulary of 152,000 ids takes 19 kB, which a kernel reads in microseconds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class TokenMask:
    """A mask over a vocabulary. words [⌈vocab / 32⌉]: int32; token `id` is allowed where bit id % 32 of words[id // 32] is 1."""

    words: Tensor
    vocab: int

    @staticmethod
    def of(flags: Tensor) -> "TokenMask":
        """Pack flags [V], True for each token that is allowed."""
        packed = np.packbits(flags.numpy(), bitorder="little")
        return TokenMask.packed(np.concatenate([packed, np.zeros(-len(packed) % 4, np.uint8)]), len(flags))

    @staticmethod
    def packed(bits: np.ndarray | bytes, vocab: int) -> "TokenMask":
        """Return the mask of bits that are packed already, in whole words; their memory is not copied if it can be written."""
        return TokenMask(torch.from_numpy(np.require(np.frombuffer(bits, np.int32), requirements="W")), vocab)

    @property
    def flags(self) -> Tensor:
        """Return True for each token [V] that is allowed."""
        bits = np.unpackbits(self.words.numpy().view(np.uint8), count=self.vocab, bitorder="little")
        return torch.from_numpy(bits.view(bool))

    def without(self, ids: Sequence[int]) -> "TokenMask":
        """Return the mask that does not allow these tokens either."""
        flags = self.flags
        flags[list(ids)] = False
        return TokenMask.of(flags)

    def __contains__(self, id: int) -> bool:
        return bool(int(self.words[id // 32]) >> id % 32 & 1)

    def __bool__(self) -> bool:
        """Return True if a token is allowed."""
        return bool(self.flags.any())
