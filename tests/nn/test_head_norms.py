"""The LayerNorm of queries and keys whose weights are each head's own (StableLM 2 12B, Command R+)."""

from dataclasses import replace

import pytest
import torch

from pellucid import ops
from pellucid.ops import native
from tiny import LLAMA, far, law, tiny

layer, layer_heads = ops.layer, ops.layer_heads
DTYPES = (torch.float32, torch.bfloat16)


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@law(
    1e-12,
    one_weight=(ops, "layer_heads", lambda x, w, eps: layer(x, w[: x.shape[-1]], None, eps)),
    joint=(ops, "layer_heads", lambda x, w, eps: layer(x.flatten(-2), w, None, eps).unflatten(-1, x.shape[-2:])),
)
def test_each_head_is_normed_by_its_own_weights() -> float:
    x, w = rows(2, 5, 3, 8), rows(24, seed=1)
    hand = torch.empty_like(x)
    for h in range(3):
        own = x[:, :, h]
        hand[:, :, h] = (own - own.mean(-1, keepdim=True)) / (own.var(-1, unbiased=False, keepdim=True) + 0.1).sqrt() * w[8 * h : 8 * h + 8]
    return far(ops.layer_heads(x, w, 0.1), hand)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_kernel_rounds_once(dtype: torch.dtype) -> None:
    """The kernel and torch's operations are the exact result rounded once, but for some last bits."""
    x, w = rows(1, 6, 4, 32).to(dtype), rows(128, seed=1).to(dtype)
    exact = layer_heads(x.double(), w.double(), 1e-5).to(dtype)
    with native.off():
        plain = ops.layer_heads(x, w, 1e-5)
    for y in (plain, ops.layer_heads(x, w, 1e-5)):
        assert torch.allclose(y, exact, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
        assert float((y != exact).double().mean()) < (0.01 if dtype is torch.bfloat16 else 1)


def test_queries_and_keys_have_a_weight_for_each_channel_of_each_head() -> None:
    first = LLAMA.layers[0]
    own = replace(LLAMA, layers=(replace(first, attn=replace(first.attn, qk_norm=True, qk_own=True)),))
    attn = tiny(own).layers[0].attn
    assert attn.q_norm.weight.shape == (4 * 8,) and attn.k_norm.weight.shape == (2 * 8,)
    assert attn.axes["q_norm"] == "(H K)" and attn.axes["k_norm"] == "(G K)"
