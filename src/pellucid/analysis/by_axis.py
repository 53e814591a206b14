"""Two runs row by row or head by head, and which experts their rows chose: a number for each index, 0 where nothing differs.

along(compare(a, b), "T")           {"layers.0.out": [0.0, 0.0, 0.03, ...], ...}
loads(compare(a, b))                {"layers.2.ffn.chosen": ([3, 0, 2, ...], [2, 1, 2, ...])}
"""

import torch
from torch import Tensor

from pellucid.analysis.compare import Comparison, values_beside
from pellucid.analysis.difference import keyed
from pellucid.tracing import Trace

CHOSEN = "chosen"


def along(c: Comparison, letter: str) -> dict[str, list[float]]:
    """Return ‖b − a‖ / ‖a‖ of every tensor of the first step for each index of an axis: T of compared rows, H of heads.

    Where a is 0 and b is not, infinity. Tensors without the axis are left out.
    """
    theirs, out = keyed(c.b), dict[str, list[float]]()
    for key, s in keyed(c.a).items():
        letters = s.dims.split()
        if letter not in letters or s.step or s.call or key not in theirs or (pair := values_beside(s, theirs[key], c.pairs)) is None:
            continue
        x, y = (value.double().movedim(letters.index(letter), 0).flatten(1) for value in pair)
        size, moved = x.norm(dim=1), (y - x).norm(dim=1)
        out[s.path] = torch.where(moved == 0, torch.zeros_like(moved), moved / size).tolist()
    return out


def loads(c: Comparison) -> dict[str, tuple[list[int], list[int]]]:
    """Return how often each expert was chosen in both runs, by the tensor of the choices, over all rows of the first step."""
    a, b = chosen(c.a), chosen(c.b)
    own = {path: max(experts_of(c.a, path), experts_of(c.b, path)) for path in a if path in b}
    return {path: (counted(a[path], experts), counted(b[path], experts)) for path, experts in own.items()}


def chosen(run: Trace) -> dict[str, Tensor]:
    """Return the experts that the rows of the first step chose, by path."""
    ours = (s for s in run if s.step == 0 and s.path.startswith("layers.") and s.path.rpartition(".")[2] == CHOSEN)
    return {s.path: s.value for s in ours if isinstance(s.value, Tensor)}


def experts_of(run: Trace, path: str) -> int:
    """Return how many experts the layer of a path has."""
    ffn = run.runner.config.layers[int(path.split(".")[1])].ffn
    return int(ffn.experts)


def counted(ids: Tensor, experts: int) -> list[int]:
    """Return how often each expert occurs."""
    return torch.bincount(ids.flatten().long(), minlength=experts).tolist()
