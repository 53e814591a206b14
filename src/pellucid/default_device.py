"""Steps out of a default device of torch: what Pellucid makes is where its own arguments say, and on the CPU where they say nothing."""

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")


def on_cpu(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Wrap `function`: `torch.set_default_device` and `with torch.device(...)` of its caller do not reach the tensors that it makes."""

    @functools.wraps(function)
    def call(*args: Given.args, **how: Given.kwargs) -> Result:
        torch = sys.modules.get("torch")  # a default can be set once it is imported; counting needs none
        # A default is a mode of torch's functions. Most calls have no mode, and ask for no device: that takes 5 µs, of every step too.
        if torch is None or not torch._C._len_torch_function_stack() or torch.get_default_device().type == "cpu":
            return function(*args, **how)
        with torch.device("cpu"):
            return function(*args, **how)

    return call
