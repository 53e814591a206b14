"""Recomputation: a block keeps its input alone for the backward pass, and runs again there (arXiv 1604.06174).

It changes no bit: the same ops run on the same numbers. What adapters drop is drawn by path, so it is the same again. A watch sees the
first run alone.

C's heap keeps what blocks took and freed, in the last backward pass and in this forward, beside the logits, which lie outside of it. So it
is given back before the logits are made, and before each backward pass.
"""

import ctypes
import inspect
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from pellucid.batch.step import Step
from pellucid.nn.head import LogitsHead
from pellucid.nn.transformer import Stack
from pellucid.watching.meta import untrace
from pellucid.watching.tap import seen_by

if "torch._dynamo" not in sys.modules:  # as in meta: what torch wraps imports its compiler when first called
    for rule in vars(torch.utils.checkpoint).values():
        untrace(rule)
checkpoint = inspect.unwrap(torch.utils.checkpoint.checkpoint)


def unseen() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of a block's first run and of its second one, which no watch records."""
    return nullcontext(), seen_by()


def recomputed(block: nn.Module, x: Tensor, step: Step) -> Tensor:
    """Run a block so that it keeps x alone, if there will be a backward pass."""
    if not torch.is_grad_enabled():
        return block(x, step)  # type: ignore[no-any-return]
    return checkpoint(block, x, step, use_reentrant=False, preserve_rng_state=False, context_fn=unseen)  # type: ignore[no-any-return]


class Recompute:
    """The recomputation of a model's blocks. on: False for a model that keeps everything."""

    def __init__(self, model: nn.Module, on: bool) -> None:
        self.stacks = [m for m in model.modules() if isinstance(m, Stack)] if on else []
        self.trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if on and sys.platform == "linux" else None  # glibc's alone
        self.head = model.head if self.trim is not None and isinstance(model, LogitsHead) else None
        self.hook: RemovableHandle | None = None
        self.begin()

    def begin(self) -> None:
        """Let blocks recompute."""
        for stack in self.stacks:
            stack.run_block = recomputed
        if self.head is not None:
            self.hook = self.head.register_forward_pre_hook(self.give_back)

    def give_back(self, *_: object) -> None:
        """Give memory that is free back to the system, where there will be a backward pass."""
        if self.trim is not None and torch.is_grad_enabled():
            self.trim(0)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Let blocks keep everything, as a watch with gradients does anyway: it computes tensors inside ops beside the forward.

        The model is as it was without recomputation: a copy of it has none.
        """
        try:
            for stack in self.stacks:
                del stack.run_block
            if self.hook is not None:
                self.hook.remove()
            yield
        finally:
            self.begin()
