"""Steps out of torch's inference mode, whose tensors can be written in that mode alone, and of a default device.

A model keeps its pages and plans from call to call, so what it allocates in `with torch.inference_mode():` is used after it too.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from pellucid.default_device import on_cpu

Given = ParamSpec("Given")
Result = TypeVar("Result")


def lasting(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Wrap `function`: the tensors that it allocates can be written, and take gradients, outside inference mode too."""
    run = on_cpu(function)

    @functools.wraps(function)
    def call(*args: Given.args, **how: Given.kwargs) -> Result:
        if not torch.is_inference_mode_enabled():
            return run(*args, **how)
        with torch.inference_mode(False), torch.no_grad():  # leaving inference mode alone would bring gradients back
            return run(*args, **how)

    return call
