"""Ties of a sparse choice in a comparison with transformers: where keys at the cut have equal scores, either may be chosen.

Here the earlier key wins; torch.topk, which transformers calls, takes any. What follows then differs, and neither is wrong.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pellucid.api.model import Model
from pellucid.families.modules import ModulePair, Runs
from pellucid.nn.indexer import Indexer
from pellucid.watching.watch import watch


@dataclass(frozen=True)
class EqualChoices:
    """A sparse choice that differs among keys of equal scores alone. path: our indexer.  rows: the queries with other keys."""

    path: str
    rows: int


def equal_choices(
    model: Model, ids: tuple[Tensor, ...], table: list[ModulePair], mine: Runs, right: Runs, before: str
) -> EqualChoices | None:
    """Return the first choice of keys, ahead of our module `before`, that differs in nothing but how ties are broken; else None."""
    ends = list(mine)
    known = {p.ours: p.theirs for p in table if isinstance(model.module.get_submodule(p.ours), Indexer)}
    paths = [path for path in ends[: ends.index(before)] if path in known and right.get(known[path])]
    if not paths:
        return None
    with torch.no_grad(), watch(model.module, [f"{path}.scores" for path in paths]) as records:
        model(*ids)
    for path in paths:
        chosen, picked = mine[path][0][1], right[known[path]][0][1]
        scores = records[f"{path}.scores"].value
        allowed = torch.ones_like(chosen).tril()
        theirs = torch.zeros_like(chosen).scatter(-1, picked.long().to(chosen.device), True) & allowed
        differ = chosen != theirs
        if not bool(differ.any()):
            continue
        cut = scores.masked_fill(~chosen, torch.inf).amin(-1, keepdim=True)
        tied = bool((scores == cut)[differ].all()) and bool((chosen.sum(-1) == theirs.sum(-1)).all())
        return EqualChoices(path, int(differ.any(-1).sum())) if tied else None
    return None
