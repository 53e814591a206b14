"""A model's architecture as a drawing: its parts from the input to the logits, read off its Config."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

import torch

from pellucid.config import AnyAttention, AnyFfn, Config, Layer, ShortConv
from pellucid.counting.meta_run import meta_model
from pellucid.nn.block import Block

SCALED = {"sandwich, scaled", "sandwich, scaled, rows"}
BEFORE = {"pre", "sandwich", "parallel", "parallel, two norms", "bare", *SCALED}  # orders in which a norm stands before a part
OF_WHAT_IT_MADE = {"sandwich", "after", *SCALED}  # orders in which one stands between a part and its sum


@dataclass(frozen=True)
class DrawnPart:
    """A part of a drawing. kind: "embed", "positions", "encoder", "decoder", "norm", "attn", "conv", "delta", "mamba", "cross", "sum",
    "ffn", "experts", "head".

    note: its sizes.  times: how many equal ones follow each other.  depth: 1 inside a block.
    """

    kind: str
    note: str = ""
    times: int = 1
    depth: int = 0


def parts(cfg: Config) -> list[DrawnPart]:
    """Return the parts of a model in the order in which a token passes them, equal blocks as one."""
    out = [DrawnPart("embed", f"{cfg.vocab} × {cfg.embed_width or cfg.width}")]
    if cfg.positions or cfg.sinusoids:
        out.append(DrawnPart("positions", "sin, cos" if cfg.sinusoids else f"{cfg.positions} × {cfg.width}"))
    out += stack("encoder", cfg.encoder or ())
    out += stack("decoder", cfg.layers)
    out += [DrawnPart("norm", cfg.norm)] if cfg.final_norm else []
    return [*out, DrawnPart("head", f"{cfg.width} × {cfg.vocab}")] if cfg.head else out


def stack(kind: str, layers: tuple[Layer, ...]) -> Iterator[DrawnPart]:
    """Yield the blocks of a stack, each followed by its parts."""
    for layer, same in groupby(layers):
        yield DrawnPart(kind, times=len(list(same)))
        inner = [(one.part, attention(one)) for one in layer.mixers]
        inner += [("cross", attention(layer.cross))] if layer.cross is not None else []
        if layer.ffn.width:
            inner.append(("experts" if layer.ffn.experts else "ffn", feed_forward(layer.ffn)))
        for name, note in inner:
            yield from (DrawnPart("norm", depth=1),) if layer.order in BEFORE else ()
            yield DrawnPart(name, note, depth=1)
            yield from (DrawnPart("norm", depth=1),) if layer.order in OF_WHAT_IT_MADE else ()
            yield from (DrawnPart("sum", depth=1),) if layer.order != "bare" else ()
            yield from (DrawnPart("norm", depth=1),) if layer.order == "post" else ()


def attention(spec: AnyAttention) -> str:
    """Write the kind and the sizes of an attention, and where its positions enter; of a convolution the rows that it sums, of a state its
    sizes.
    """
    if spec.state_shape is not None:
        return " × ".join(map(str, spec.state_shape))
    if isinstance(spec, ShortConv):
        return f"{spec.window}"
    rope = "" if spec.rope is None else ", RoPE"
    groups = "" if spec.kv_heads in (None, spec.heads) else f"/{spec.kv_heads}"
    return f"{spec.kind} {spec.heads}{groups} × {spec.head_width}{rope}"


def feed_forward(spec: AnyFfn) -> str:
    """Write the sizes and the activation of a feed-forward part."""
    if spec.experts:
        return f"{spec.chosen} / {spec.experts} × {spec.width}, {spec.act}"
    return f"{spec.width}, {spec.act}" + (", gated" if spec.gated else "")


def blocks(drawing: list[DrawnPart], kind: str) -> int:
    """Return the number of blocks of a kind, "encoder" or "decoder", in a drawing."""
    return sum(part.times for part in drawing if part.kind == kind)


def built(cfg: Config) -> int:
    """Return the number of blocks in the module that is built from a Config, on shapes alone."""
    return sum(isinstance(m, Block) for m in meta_model(cfg, torch.bfloat16).modules())


def longer(cfg: Config) -> Config:
    """Return a Config with one more block, equal to its last."""
    return replace(cfg, layers=(*cfg.layers, cfg.layers[-1]))
