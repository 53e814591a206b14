"""Adapters in a step of training: the numbers of LoRA's matrices, what DoRA multiplies, and a model on meta that has them."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from pellucid.counting.bill import Bill
from pellucid.counting.number import Number
from pellucid.counting.textbook import multiplied
from pellucid.counting.weights import axes_of
from pellucid.families import family, known
from pellucid.families.names import plan
from pellucid.families.quantisation import is_matrix
from pellucid.nn.adapted import Addition, add
from pellucid.nn.linear import Linear


@dataclass(frozen=True)
class Dora:
    """What DoRA takes (arXiv 2402.09353). magnitudes: their number.  matrices: the numbers in the matrices that have them."""

    magnitudes: int
    matrices: int


def dora_products(dora: Dora, rank: int, rows: int, dropout: bool, recompute: bool) -> Number:
    """Return the FLOPs that DoRA adds to a forward of `rows` and its backward: the product B·A, which the lengths are taken of.

    With dropout W also multiplies what is left of the input, and the gradient on its way back.
    """
    times = 1 + recompute
    value, symbols, numbers = times * 2 * dora.matrices * rank, f"{times}·2·W·r", f"{times}·2·{dora.matrices:,}·{rank}"
    if dropout:
        value += (times + 1) * 2 * dora.matrices * rows
        symbols, numbers = f"{symbols} + {times + 1}·2·W·T", f"{numbers} + {times + 1}·2·{dora.matrices:,}·{rows:,}"
    return Number(value, symbols, numbers)


def adapters(bill: Bill, rank: int, low: int | None = None) -> int:
    """Return the numbers in LoRA's matrices, by default beside every matrix of a layer but experts, routers, kernels. arXiv 2106.09685.

    low: their number, if it is known. Matrices that are one on disk, as q, k and v of GPT-2, share A, as PEFT has it, so it counts once.
    """
    if low is not None:
        return low
    inner = (c for c in bill.weights if multiplied(bill, c) and "layers" in c.path and c.part != "router")
    of = {c.path: c for c in inner if len(c.weight.shape) == 2 and is_matrix(c.path, c.weight.shape)}
    second = {name for group in together(bill, {path: c.weight.shape for path, c in of.items()}) for name in group[1:]}
    each = (c.times * (c.weight.shape[0] + (0 if path in second else c.weight.shape[1])) for path, c in of.items())
    return rank * sum(each)


def together(bill: Bill, shapes: Mapping[str, tuple[int, ...]]) -> list[tuple[str, ...]]:
    """Return the matrices that are one tensor on disk, those of each; [] for a model of no known family."""
    if bill.family not in known():
        return []
    groups, _ = plan(family(bill.family).rules_for(bill.reduced.config), shapes)
    return [tuple(n for n in group.ours if n in shapes) for group in groups if len(group.disk) == 1]


def adapt(model: nn.Module, rank: int, paths: tuple[str, ...] | None = None, dropout: bool = False, dora: bool = False) -> None:
    """Freeze a model, and put adapters of this rank on it. paths: within a layer, of the matrices that have one; None for all.

    dropout: their forwards draw masks.  dora: rows have magnitudes.
    """
    model.requires_grad_(False)
    for path, m in list(model.named_modules()):
        inner = path.partition("layers.")[2].partition(".")[2]
        if isinstance(m, Linear) and inner and (not path.endswith(".router") if paths is None else inner in paths):
            out, inner = m.weight.shape
            a, b, lengths = (nn.Parameter(m.weight.new_empty(shape)) for shape in ((rank, inner), (out, rank), (out,)))
            addition = Addition(a, b, 1.0, axes_of(model, f"{path}.weight", 2) or "", "T", magnitude=lengths if dora else None)
            if dropout:
                addition.drawn = torch.empty_like
            add(m, "lora", addition)
