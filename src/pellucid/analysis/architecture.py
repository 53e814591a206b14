"""A model's architecture as a drawing: its parts from the input to the logits, read off its Config."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

import torch

from pellucid.config import AnyAttention, AnyFfn, Config, Layer, ShortConv
from pellucid.counting.meta_run import meta_model
from pellucid.nn.block import NORMED_RESULT, Block


@dataclass(frozen=True)
class DrawnPart:
    """A part of a drawing. kind: "embed", "positions", "encoder", "decoder", "norm", "attn", "conv", "delta", "mamba", "cross", "sum",
    "ffn", "experts", "input", "head".

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
        yield from inside(layer)


def inside(layer: Layer) -> Iterator[DrawnPart]:
    """Yield the parts, norms and sums of a block, in the order in which a row passes them; parts between two sums read the same rows."""
    norm, total, order = DrawnPart("norm", depth=1), DrawnPart("sum", depth=1), layer.order
    mixers = [DrawnPart(one.part, attention(one), depth=1) for one in layer.mixers]
    cross = [] if layer.cross is None else [DrawnPart("cross", attention(layer.cross), depth=1)]
    ffn = [DrawnPart("experts" if layer.ffn.experts else "ffn", feed_forward(layer.ffn), depth=1)] if layer.ffn.width else []
    reads = [] if (own := layer.input) is None else [DrawnPart("input", f"{own.rows} × {own.width}, {own.act}", depth=1)]
    if order == "parallel":
        yield from (norm, *mixers, *ffn, total)
        return
    if order == "parallel, two norms":
        yield from (norm, *mixers, norm, *ffn, total)
        return
    for parts in filter(None, (mixers, cross, ffn, reads)):
        bare = parts is {"half": mixers, "sandwich, scaled, rows": ffn}.get(order, reads)
        yield from () if bare or order in ("post", "after") else (norm,)
        yield from parts
        yield from (norm,) if order in NORMED_RESULT else ()
        yield from (total,) if order != "bare" else ()
        yield from (norm,) if order == "post" else ()


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
