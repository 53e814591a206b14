"""The device of shapes without numbers, without the second in which torch would import its compiler there.

torch's Python rules for tensors on meta are wrapped so that its compiler does not trace them, and the first one that is called imports the
compiler for that (`torch._disable_dynamo`), and triton with it. Counting a model or reading a checkpoint compiles nothing: unless the
compiler is imported already, each rule is marked as its own untraced form. Should torch rename this, only the second is lost.
"""

import sys
from types import FunctionType

import torch
from torch import nn

from pellucid.errors import UseError

META = torch.device("meta")
RULES = "torch._refs", "torch._refs.nn.functional"


def need_numbers(module: nn.Module) -> None:
    """Raise a UseError for a module whose weights are shapes without numbers."""
    first = next(module.parameters(), None)
    if first is not None and first.is_meta:
        raise UseError("model.meta")


def untrace(rule: object) -> None:
    """Mark every function that `rule` wraps as its own untraced form."""
    for cell in (rule.__closure__ or ()) if isinstance(rule, FunctionType) else ():
        wrapped = cell.cell_contents
        if isinstance(wrapped, FunctionType) and "__dynamo_disable" not in vars(wrapped):
            vars(wrapped)["__dynamo_disable"] = wrapped
            untrace(wrapped)


if "torch._dynamo" not in sys.modules:
    for module in RULES:
        for rule in vars(sys.modules[module]).values() if module in sys.modules else ():
            untrace(rule)
