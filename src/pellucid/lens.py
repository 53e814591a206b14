"""The logit lens: what a model would say next if it ended after each block.

The residual stream after every block goes through the model's own last norm and head. What the last block left is the model's answer.
"""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pellucid.errors import UseError
from pellucid.models import EncoderDecoder
from pellucid.step import Step
from pellucid.tracing import Trace
from pellucid.watching import Seen

BLOCK = re.compile(r"((?:decoder\.)?layers\.\d+)\.")


def plain(seen: Seen) -> Tensor:
    """A record's own value."""
    return seen.value  # type: ignore[no-any-return]


def stream(seen: list[Seen]) -> list[Seen]:
    """The residual stream of one step [B T D]: as it enters the first block, and as it leaves each, whatever order its norms have."""
    own = [s for s in seen if s.dims == "B T D" and not s.path.startswith("encoder.")]
    left = {found[1]: s for s in own if (found := BLOCK.match(s.path))}  # of each block the last
    first = next((i for i, s in enumerate(own) if BLOCK.match(s.path)), 0)
    return [*own[:first][-1:], *left.values()]


def lens(model: Any, life: Trace, step: int = 0, row: int = -1, value: Callable[[Seen], Tensor] = plain) -> list[tuple[str, Tensor]]:
    """(path, logits [V]) of the residual stream before the first block and after each, in one row of a step.

    value: finds the value of a record that has let it go.
    """
    module = model.module
    if not model.config.head:
        raise UseError("lens.head", model=model.name)
    found = stream([s for s in life if s.step == step])
    stack = module.decoder if isinstance(module, EncoderDecoder) else module
    with torch.no_grad():
        rows = torch.cat([value(s)[:, row, None] for s in found], 1)
        logits = module.logits(stack.leave(rows), Step.plain(torch.zeros(1, len(found), dtype=torch.long, device=rows.device)))
    return [(s.path, logits[0, i]) for i, s in enumerate(found)]
