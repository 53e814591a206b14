"""PyTorch's own attention with a model's weights: nn.MultiheadAttention, whose one matrix holds those of q, k and v."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.analysis.independence import reads
from pellucid.analysis.rows import largest_gap
from pellucid.tracing import Trace

ORDER = "q", "k", "v"  # the thirds of in_proj_weight, from its first row


def library_attention(model: Any, path: str, order: Sequence[str] = ORDER) -> nn.MultiheadAttention:
    """Return an nn.MultiheadAttention with the weights of the attention at a path. order: what its thirds hold."""
    own, heads = model.module.get_submodule(path), model.config.layers[0].attn.heads
    theirs = nn.MultiheadAttention(model.config.width, heads, bias=own.o.bias is not None, batch_first=True, dtype=model.dtype)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([getattr(own, name).dense_weight() for name in order]))
        theirs.out_proj.weight.copy_(own.o.dense_weight())
        if own.o.bias is not None:
            theirs.in_proj_bias.copy_(torch.cat([getattr(own, name).bias for name in order]))
            theirs.out_proj.bias.copy_(own.o.bias)
    return theirs.eval()


def library_gaps(run: Trace, path: str, theirs: nn.MultiheadAttention) -> tuple[float, float, float]:
    """Run the library's attention on what the attention at a path has read.

    Returns the largest difference of the outputs, of each head's pattern, and of its mean over heads from the library's default table.
    """
    x = run.all(reads(run, path))[0].value
    causal = run.runner.config.layers[0].attn.causal
    hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1) if causal else None
    with torch.no_grad():
        out, each = theirs(x, x, x, attn_mask=hidden, average_attn_weights=False)
        _, default = theirs(x, x, x, attn_mask=hidden)
    pattern = run.all(f"{path}.pattern")[0].value
    return largest_gap(out, run.all(path)[0].value), largest_gap(each, pattern), largest_gap(default, pattern.mean(1))


def thirds(theirs: nn.MultiheadAttention, weights: Mapping[str, Tensor]) -> list[tuple[str, dict[str, float]]]:
    """Return (rows, {name: largest difference from that weight}) of each third of in_proj_weight."""
    parts = theirs.in_proj_weight.detach().chunk(3)
    size = len(parts[0])
    return [
        (f"{n * size} … {(n + 1) * size - 1}", {name: largest_gap(part, w) for name, w in weights.items()}) for n, part in enumerate(parts)
    ]
