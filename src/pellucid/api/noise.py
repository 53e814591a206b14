"""Noise on the embeddings of a word: the corrupted run of causal tracing (Meng et al., arXiv 2202.05262)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pellucid import ops
from pellucid.api.model import Model
from pellucid.arguments import checked
from pellucid.errors import UseError
from pellucid.nn.transformer import EncoderDecoder
from pellucid.tokenizer.pieces import find_word
from pellucid.watching.change import Change, add


@dataclass(frozen=True)
class Noise:
    """Gaussian noise on the embeddings of a word, drawn several times. deviations: its size, in those of all embeddings."""

    word: str
    deviations: float
    draws: int
    seed: int

    def changes(self, model: Model, ids: Sequence[int]) -> list[Change]:
        """Return the change of each draw on the run of these ids. A UseError unless the word stands in them once."""
        at = find_word(model.tokenizer.pieces(ids), self.word)
        path, axis = ("source", "S") if isinstance(model.module, EncoderDecoder) else ("embed", "T")
        table = ops.dense_weight(model.module.embed.weight).detach()
        size, g = self.deviations * float(table.float().std()), torch.Generator().manual_seed(self.seed)
        drawn = size * torch.randn(self.draws, len(at), table.shape[1], generator=g, dtype=torch.float64)
        return [add(path, one, **{axis: at}) for one in drawn]


@checked
def noise(word: str, deviations: float = 3.0, draws: int = 10, seed: int = 0) -> Noise:
    """Corrupt a run by Gaussian noise on the embeddings of a word, for `patch`. The sweep's numbers are means over the draws.

    deviations: the noise's standard deviation, in those of all embeddings.
    """
    if type(draws) is not int or draws < 1:
        raise UseError("sweep.draws", found=draws)
    return Noise(word, float(deviations), draws, seed)
