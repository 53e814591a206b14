"""What each head looks at: scores of its pattern on random tokens that are read twice.

a b c d a b c d        from the second c:  duplicate → the first c;  induction → d, which came after it;  previous → b;  first → a
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pellucid.arguments import checked
from pellucid.errors import UseError
from pellucid.nn.transformer import Decoder
from pellucid.tracing import module_of, watch
from pellucid.watching.meta import need_numbers

SCORES = ("induction", "duplicate", "previous", "first")


@dataclass(frozen=True, eq=False)
class HeadScores:
    """The mean weight that each head gives to four places. values: {score: [layer H]}.  paths: of the patterns."""

    values: dict[str, Tensor]
    paths: list[str]

    def __repr__(self) -> str:
        """Return one line with the strongest head of each score: HeadScores(16 heads; induction: layers.2.attn.pattern 1, 0.91; …)."""
        strongest = [f"{score}: {path} {head}, {weight:.2f}" for score in self.values for path, head, weight in self.best(score, 1)]
        return f"HeadScores({next(iter(self.values.values())).numel()} heads; {'; '.join(strongest)})"

    def best(self, score: str, count: int = 5) -> list[tuple[str, int, float]]:
        """Return the heads with the largest weight: (path, head, weight)."""
        table = self.values[score]
        places = table.flatten().argsort(descending=True, stable=True)[:count]
        return [(self.paths[i // table.shape[1]], i % table.shape[1], float(table.flatten()[i])) for i in places.tolist()]


@checked
def heads(model: Any, length: int = 20, texts: int = 8, seed: int = 0) -> HeadScores:
    """Score every head of a decoder on `texts` sequences of `length` random tokens that are read twice. A UseError for other models."""
    module = module_of(model)
    need_numbers(module)
    if not isinstance(module, Decoder) or module.config.bidirectional:
        raise UseError("heads.decoder", model=getattr(model, "name", type(module).__name__))
    most = (module.config.positions or 2 * length) // 2
    if not 2 <= length <= most or texts < 1:
        raise UseError("heads.length", found=length, most=most)
    once = torch.randint(module.config.vocab, (texts, length), generator=torch.Generator().manual_seed(seed))
    ids = torch.cat([once, once], 1).to(next(module.parameters()).device)

    def places(pattern: Tensor) -> Tensor:
        """Reduce a pattern [B H T S] to its four scores [4 H]."""
        induction, duplicate, previous = (pattern.diagonal(-back, -2, -1) for back in (length - 1, length, 1))
        weights = induction[..., 1:], duplicate, previous[..., length - 1 :], pattern[..., length:, 0]
        return torch.stack([x.double().mean((0, -1)) for x in weights])

    with torch.no_grad(), watch(model, only="layers.*.attn.pattern", keep=places) as seen:
        module(ids)
    table = torch.stack([s.value for s in seen], 1)
    return HeadScores(dict(zip(SCORES, table, strict=True)), [s.path for s in seen])
