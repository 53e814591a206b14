"""The logit lens: the model's prediction if it ended after each block.

The residual stream after every block goes through the model's own last norm and head; after the last block this gives its own logits.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pellucid.api.trace import traced
from pellucid.arguments import checked
from pellucid.batch.step import Step
from pellucid.errors import UseError
from pellucid.nn.transformer import EncoderDecoder
from pellucid.tracing import Trace, module_of
from pellucid.watching.records import Seen


def plain(seen: Seen) -> Tensor:
    """Return a record's own value."""
    return seen.value  # type: ignore[no-any-return]


def writer(module: Any) -> Any:
    """Return the stack that leads to the logits, with its last norm."""
    return module.decoder if isinstance(module, EncoderDecoder) else module


def leaving(module: Any) -> list[str]:
    """Return the path of what leaves each block of that stack."""
    stack = writer(module)
    prefix = "" if stack is module else "decoder."
    return [f"{prefix}layers.{i}.{block.leaves}" for i, block in enumerate(stack.layers)]


def stream(module: Any, seen: list[Seen]) -> list[Seen]:
    """Return the recorded residual stream of one step [B T D]: the first block's input and each block's output."""
    prefix, left = "" if writer(module) is module else "decoder.", leaving(module)
    records = {s.path: s for s in seen if s.dims == "B T D"}
    first = next((s.inputs for s in seen if s.path.startswith(f"{prefix}layers.0.")), ())[:1]
    # In a partial recording the first record of block 0 may be any tensor, with an operand that is inside the block.
    enters = [p for p in first if not p.startswith((f"{prefix}layers.", "encoder."))]
    recorded = [records[p] for p in (*enters, *left) if p in records]
    if not recorded:
        raise UseError("lens.missing", path=left[0])
    return recorded


def row_of(row: int, seen: Seen) -> int:
    """Return a row's number, counted from the first. A UseError for one that a record [B T D] does not have."""
    most = seen.shape[1]
    if not -most <= row < most:
        raise UseError("lens.row", found=row, least=-most, most=most - 1)
    return row % most


@checked
def lens(
    model: Any, trace: Trace | str | Sequence[int] | Tensor, step: int = 0, row: int = -1, value: Callable[[Seen], Tensor] = plain
) -> list[tuple[str, Tensor]]:
    """Return (path, logits [V]) of the residual stream before the first block and after each, in one row of a step.

    trace: a trace, or a text or ids, which are then traced.  value: returns the value of a record that has dropped it.
    """
    module: Any = module_of(model)
    if not model.config.head:
        raise UseError("lens.head", model=model.name)
    recorded = stream(module, [s for s in traced(model, trace) if s.step == step])
    row = row_of(row, recorded[0])
    with torch.no_grad():
        rows = torch.cat([value(s)[:, row, None] for s in recorded], 1)
        logits = module.logits(
            writer(module).last_norm(rows), Step.plain(torch.zeros(1, len(recorded), dtype=torch.long, device=rows.device))
        )
    return [(s.path, logits[0, i]) for i, s in enumerate(recorded)]
