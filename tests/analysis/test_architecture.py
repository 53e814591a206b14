"""A drawing follows the Config: its blocks, their order of norms, their kinds."""

from dataclasses import replace

import pytest

from pellucid.analysis.architecture import OF_WHAT_IT_MADE, blocks, built, longer, parts
from pellucid.api.count import described
from pellucid.counting.training_ranks import NORMED_AFTER
from pellucid.nn.block import ORDERS, AfterBlock, SandwichBlock
from tiny import GPT2, LLAMA


@pytest.mark.parametrize(("name", "encoders", "decoders"), [("transformer-base", 6, 6), ("gpt2-small", 0, 12), ("deepseek-v3", 0, 61)])
def test_blocks_are_those_of_the_module(name: str, encoders: int, decoders: int) -> None:
    _, cfg = described(name)
    drawing = parts(cfg)
    assert (blocks(drawing, "encoder"), blocks(drawing, "decoder")) == (encoders, decoders)
    assert built(cfg) == encoders + decoders


def test_orders_of_norms() -> None:
    def inside(order: str) -> list[str]:
        cfg = replace(GPT2, layers=tuple(replace(layer, order=order) for layer in GPT2.layers))
        return [p.kind for p in parts(cfg) if p.depth]

    assert inside("pre") == ["norm", "attn", "sum", "norm", "ffn", "sum"]
    assert inside("post") == ["attn", "sum", "norm", "ffn", "sum", "norm"]
    assert inside("sandwich") == ["norm", "attn", "norm", "sum", "norm", "ffn", "norm", "sum"]
    assert inside("bare") == ["norm", "attn", "norm", "ffn"]
    for scaled in ("sandwich, scaled", "sandwich, scaled, rows"):
        assert inside(scaled) == inside("sandwich")


def test_every_order_with_a_norm_behind_a_part_is_known() -> None:
    """The drawing and the bytes that ranks exchange again in a backward pass go by lists of orders; the blocks have the norms."""
    of_what_it_made = {order for order, block in ORDERS.items() if issubclass(block, SandwichBlock | AfterBlock)}
    assert of_what_it_made == OF_WHAT_IT_MADE and of_what_it_made | {"post"} == set(NORMED_AFTER)


def test_what_differs_is_drawn_apart() -> None:
    assert [p.times for p in parts(LLAMA) if p.kind == "decoder"] == [2]
    last = replace(LLAMA.layers[-1], attn=replace(LLAMA.layers[-1].attn, kv_heads=1))
    mixed = replace(LLAMA, layers=(LLAMA.layers[0], last))
    assert [p.times for p in parts(mixed) if p.kind == "decoder"] == [1, 1]
    assert blocks(parts(longer(LLAMA)), "decoder") == 3
    assert [p.kind for p in parts(GPT2)][:2] == ["embed", "positions"] and parts(LLAMA)[1].kind == "decoder"
