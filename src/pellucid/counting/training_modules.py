"""Modules for multi-token prediction in the bill of a step (nn/multi_token.py): their numbers, and their products."""

import re
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pellucid.batch.step import Step
from pellucid.config import Config
from pellucid.counting.bill import Bill
from pellucid.counting.meta_run import meta_model
from pellucid.counting.number import Number
from pellucid.counting.training_ranks import orthogonalised
from pellucid.nn.multi_token import MultiTokenPrediction
from pellucid.nn.transformer import Decoder, cast
from pellucid.watching.meta import META
from pellucid.watching.watch import watch

MODULE = re.compile(r"multi_token\.\d+(\.block)?")
"""The path of a module, or of its block."""


class ModuleProducts(NamedTuple):
    """The FLOPs of all modules in a forward, and those of their blocks alone."""

    every: int
    blocks: int


def is_block(path: str) -> bool:
    """True for the path of a layer, or of a module's block, which recomputation runs again."""
    return "layers" in path or path.endswith(".block")


def attach(model: Decoder, cfg: Config, depth: int, dtype: torch.dtype) -> None:
    """Give a model on meta the modules of a model of the config `cfg`."""
    with META:
        model.multi_token = nn.ModuleList(cast(MultiTokenPrediction(cfg), dtype) for _ in range(depth))


def look_ahead(model: Decoder, tokens: Tensor, step: Step) -> None:
    """Run the modules that a model has behind its forward on `step`. Each reads tokens of its own, as many as the model."""
    x = step.last
    for module in model.multi_token or ():
        x, _ = module(model, x, tokens.clone(), step)


def shapes(cfg: Config, depth: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the modules' parameters by the paths that they have in a model."""
    with META:
        one = MultiTokenPrediction(cfg)
    return {f"multi_token.{k}.{path}": tuple(p.shape) for k in range(depth) for path, p in one.named_parameters()}


def numbers(cfg: Config, depth: int, of_muon: bool = False) -> int:
    """Return how many numbers the modules train. of_muon: those of the matrices alone that Muon changes."""
    given = shapes(cfg, depth).items() if depth else ()
    return sum(torch.Size(shape).numel() for path, shape in given if not of_muon or orthogonalised(path, len(shape)))


def products(bill: Bill, depth: int, recompute: bool) -> Number:
    """Return the FLOPs of the modules in a step on the bill's rows; with recompute their blocks run twice."""
    ahead = counted(bill.doubled.config, bill.config, bill.setting.context, bill.setting.batch, depth)
    if not recompute:
        return Number(3 * ahead.every, "3·forward", f"3·{ahead.every:,}")
    return Number(3 * ahead.every + ahead.blocks, "3·forward + blocks", f"3·{ahead.every:,} + {ahead.blocks:,}")


@lru_cache(512)
def counted(reduced: Config, cfg: Config, rows: int, batch: int, depth: int) -> ModuleProducts:
    """Return the FLOPs of the modules of a config, behind a model of fewer layers."""
    model = meta_model(reduced, torch.bfloat16)
    assert isinstance(model, Decoder)
    attach(model, cfg, depth, torch.bfloat16)
    tokens = torch.zeros(batch, rows, dtype=torch.long, device=META)
    step = Step.plain(tokens)
    with torch.no_grad(), watch(model, keep=lambda x: None) as seen:
        model(tokens, step)
        alone = sum(seen.flops.values())
        look_ahead(model, tokens, step)
    return ModuleProducts(sum(seen.flops.values()) - alone, sum(n for path, n in seen.flops.items() if ".block." in path))
