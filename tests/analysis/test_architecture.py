"""A drawing follows the Config: its blocks, their order of norms, their kinds."""

from dataclasses import replace

import pytest
import torch

from pellucid.analysis import architecture
from pellucid.analysis.architecture import blocks, built, longer, parts
from pellucid.api.count import described
from pellucid.config import Config, LayerInput, Mamba2
from pellucid.exhibits.architectures import boxes
from pellucid.nn.block import ORDERS
from pellucid.watching.watch import watch
from tiny import GPT2, LLAMA, swapped, tiny


@pytest.mark.parametrize(("name", "encoders", "decoders"), [("transformer-base", 6, 6), ("gpt2-small", 0, 12), ("deepseek-v3", 0, 61)])
def test_blocks_are_those_of_the_module(name: str, encoders: int, decoders: int) -> None:
    _, cfg = described(name)
    drawing = parts(cfg)
    assert (blocks(drawing, "encoder"), blocks(drawing, "decoder")) == (encoders, decoders)
    assert built(cfg) == encoders + decoders


def drawn(cfg: Config) -> list[str]:
    """Return the kinds of a drawing's parts of its first block."""
    return [p.kind for p in parts(replace(cfg, layers=cfg.layers[:1])) if p.depth]


def ran(cfg: Config) -> list[str]:
    """Return the same of the block that is built, in the order in which it names what it computes."""
    model = tiny(cfg)
    with watch(model, only="layers.0.*") as seen:
        model(torch.arange(6)[None])
    names = [s.path.removeprefix("layers.0.") for s in seen if s.path.count(".") == 2]
    if cfg.layers[0].order == "sandwich, scaled" or cfg.layers[0].order == "sandwich, scaled, rows":
        names.remove("out")  # is the sum times a number
    kinds = {"mid": "sum", "summed": "sum", "out": "sum", "joined": "sum", "both": None}
    out = ["norm" if name.endswith("_norm") else kinds.get(name, name) for name in names]
    return [kind for kind in out if kind is not None and (kind != "sum" or cfg.layers[0].order != "bare")]


BLOCKS = {order: replace(GPT2, layers=(replace(GPT2.layers[0], order=order),)) for order in ORDERS}
SCALED = replace(GPT2.layers[0], order="sandwich, scaled")
BLOCKS["input"] = replace(GPT2, layers=(replace(SCALED, input=LayerInput(GPT2.vocab, 8)),))
BLOCKS["two parts"] = replace(GPT2, layers=(replace(GPT2.layers[0], second=Mamba2(2, 8, 4, 8)),))


@pytest.mark.parametrize("order", BLOCKS)
def test_a_drawing_is_what_runs(order: str) -> None:
    """Where both parts read the same rows their norms run first, and stand before each in a drawing."""
    was, drawing = ran(BLOCKS[order]), drawn(BLOCKS[order])
    assert len(boxes(parts(BLOCKS[order]))) == len(parts(BLOCKS[order]))  # each kind has a name
    assert was == drawing if not order.startswith("parallel") else sorted(was) == sorted(drawing)


def test_parts_between_two_sums_read_the_same_rows() -> None:
    assert drawn(BLOCKS["parallel"]) == ["norm", "attn", "ffn", "sum"]
    assert drawn(BLOCKS["parallel, two norms"]) == ["norm", "attn", "norm", "ffn", "sum"]
    assert drawn(BLOCKS["two parts"]) == ["norm", "attn", "mamba", "sum", "norm", "ffn", "sum"]


def test_a_drawing_of_another_order_is_found() -> None:
    with pytest.raises(AssertionError), swapped(architecture, "NORMED_RESULT", {"after"}):
        test_a_drawing_is_what_runs("sandwich")


def test_what_differs_is_drawn_apart() -> None:
    assert [p.times for p in parts(LLAMA) if p.kind == "decoder"] == [2]
    last = replace(LLAMA.layers[-1], attn=replace(LLAMA.layers[-1].attn, kv_heads=1))
    mixed = replace(LLAMA, layers=(LLAMA.layers[0], last))
    assert [p.times for p in parts(mixed) if p.kind == "decoder"] == [1, 1]
    assert blocks(parts(longer(LLAMA)), "decoder") == 3
    assert [p.kind for p in parts(GPT2)][:2] == ["embed", "positions"] and parts(LLAMA)[1].kind == "decoder"
