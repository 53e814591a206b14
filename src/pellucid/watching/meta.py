"""The device of shapes without numbers, without the second that torch takes there to import its compiler.

torch's Python rules for tensors on meta are wrapped so that its compiler does not trace them, and the first one that is called imports the
compiler for that (`torch._disable_dynamo`), and triton with it. Who counts a model or reads a checkpoint compiles nothing: unless the
compiler is there already, each rule is told that its untraced form is itself. Should torch rename this, only the second is lost.
"""

import sys
from types import FunctionType

import torch

META = torch.device("meta")
RULES = "torch._refs", "torch._refs.nn.functional"


def untrace(rule: object) -> None:
    """Every function that this one is wrapped around."""
    for cell in (rule.__closure__ or ()) if isinstance(rule, FunctionType) else ():
        within = cell.cell_contents
        if isinstance(within, FunctionType) and "__dynamo_disable" not in vars(within):
            vars(within)["__dynamo_disable"] = within
            untrace(within)


if "torch._dynamo" not in sys.modules:
    for module in RULES:
        for rule in vars(sys.modules[module]).values() if module in sys.modules else ():
            untrace(rule)
