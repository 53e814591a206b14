"""One block: attention, add; cross attention, add; feed-forward, add; and norms where the config's order puts them.

Every part is chosen here, once, by its spec.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from pellucid import config as c
from pellucid import ops
from pellucid.batch.step import Step
from pellucid.nn.attention import Attention, CrossAttention, KeptKeysAttention, SharedKeysAttention
from pellucid.nn.gated_delta import GatedDelta
from pellucid.nn.latent import Latent
from pellucid.nn.layer_input import LayerInput
from pellucid.nn.linear import Embedding
from pellucid.nn.low_rank import thin
from pellucid.nn.mlp import GatedMlp, Mlp, XieluMlp
from pellucid.nn.moe import InputWeightedMoe, Moe, SparseMixerMoe
from pellucid.nn.norm import NORMS, AnyNorm
from pellucid.nn.selective import Mamba1
from pellucid.nn.short_conv import ShortConv
from pellucid.nn.state_space import Mamba2
from pellucid.watching.tap import tap

AnyAttention = Attention | Latent | ShortConv | GatedDelta | Mamba1 | Mamba2

ATTENTION: dict[type, Callable[..., AnyAttention]] = {
    c.Attention: Attention,
    c.Latent: Latent,
    c.ShortConv: ShortConv,
    c.GatedDelta: GatedDelta,
    c.Mamba1: Mamba1,
    c.Mamba2: Mamba2,
}  # the part of each spec
BY_KEYS = {"kept": KeptKeysAttention, "shared": SharedKeysAttention}  # of attention that is not by itself


def attention(cfg: c.Config, spec: c.AnyAttention, table: Embedding | None) -> AnyAttention:
    """Make the part of a spec. The table of distance biases goes to those that have buckets."""
    part: Callable[..., AnyAttention] = ATTENTION[type(spec)] if spec.keys == "own" else BY_KEYS[spec.keys]
    if spec.buckets is not None and spec.buckets.own:
        table = Embedding(spec.buckets.count, spec.heads)
    return part(cfg, spec) if spec.buckets is None else part(cfg, spec, table)


def feed_forward(cfg: c.Config, spec: c.AnyFfn) -> Mlp | Moe | None:
    if isinstance(spec, c.Without):
        return None
    if isinstance(spec, c.Moe):
        part = InputWeightedMoe if spec.share_first else SparseMixerMoe if spec.near is not None else Moe
        return part(cfg, spec)
    return XieluMlp(cfg, spec) if spec.act == "xielu" else GatedMlp(cfg, spec) if spec.gated else Mlp(cfg, spec)


class Block(nn.Module):
    """x [B T D] -> [B T D], with the norm before each part (arXiv 2002.04745)."""

    attn: AnyAttention
    cross: CrossAttention | None
    ffn: Mlp | Moe | None
    leaves = "out"  # the name of the tensor that leaves it

    def __init__(self, cfg: c.Config, spec: c.Layer, table: Embedding | None = None) -> None:
        super().__init__()
        self.gain = spec.gain if spec.gain != 1.0 else None
        self.factors = dict(spec.factors)
        self.mixer = spec.attn.part  # "attn", or the name of what stands in its place
        self.add_norms(self.mixer, cfg)
        self.add_module(self.mixer, attention(cfg, spec.attn, table))
        if spec.cross is not None:
            self.add_norms("cross", cfg)
        self.cross = CrossAttention(cfg, spec.cross) if spec.cross is not None else None
        if spec.ffn.width:  # before the part: a recipe's seed draws the weights in this order
            self.add_norms("ffn", cfg)
        self.ffn = feed_forward(cfg, spec.ffn)

    def add_norms(self, part: str, cfg: c.Config) -> None:
        self.add_module(f"{part}_norm", NORMS[cfg.norm](cfg.width, cfg.eps))

    def forward(self, x: Tensor, step: Step) -> Tensor:
        if self.ffn is None:
            return self.sum(x, self.mixer, "out", step)
        x = self.sum(x, self.mixer, "mid", step)
        if self.cross is not None:
            x = self.sum(x, "cross", "crossed", step)
        return self.sum(x, "ffn", "out", step)

    def sum(self, x: Tensor, part: str, total: str, step: Step) -> Tensor:
        """Add what `part` makes of x to x, and name the sum `total`."""
        return tap(ops.add(x, self.run(part, self.normed(f"{part}_norm", x), step)), f"{total}: B T D")

    def run(self, part: str, x: Tensor, step: Step) -> Tensor:
        if (factor := self.factors.get(f"{part}.in")) is not None:
            x = tap(ops.scaled(x, factor), f"{part}_reads: B T D")
        x, factor = tap(getattr(self, part)(x, step), f"{part}: B T D"), self.factors.get(part, self.gain)
        return x if factor is None else tap(ops.scaled(x, factor), f"{part}_scaled: B T D")

    def normed(self, norm: str, x: Tensor) -> Tensor:
        return tap(getattr(self, norm)(x), f"{norm}: B T D")


class TwoMixerBlock(Block):
    """Two parts mix the rows of one norm, and what both made is added at once (Falcon-H1, arXiv 2507.22448)."""

    def __init__(self, cfg: c.Config, spec: c.Layer, table: Embedding | None = None) -> None:
        super().__init__(cfg, spec, table)
        assert spec.second is not None
        self.second = spec.second.part
        self.add_module(self.second, attention(cfg, spec.second, None))

    def forward(self, x: Tensor, step: Step) -> Tensor:
        rows = self.normed(f"{self.mixer}_norm", x)
        mixed = ops.add(self.run(self.mixer, rows, step), self.run(self.second, rows, step))
        return self.sum(tap(ops.add(x, tap(mixed, "both: B T D")), "mid: B T D"), "ffn", "out", step)


class PostBlock(Block):
    """The norm after each sum (arXiv 1706.03762): what leaves the block is normed."""

    leaves = "ffn_norm"

    def sum(self, x: Tensor, part: str, total: str, step: Step) -> Tensor:
        return self.normed(f"{part}_norm", tap(ops.add(x, self.run(part, x, step)), f"{total}: B T D"))


class SandwichBlock(Block):
    """A norm before each part, and one more of what it made, before the sum (Gemma 2, arXiv 2408.00118). A gain stands behind both."""

    def __init__(self, cfg: c.Config, spec: c.Layer, table: Embedding | None = None) -> None:
        super().__init__(cfg, spec, table)
        self.gain, self.last_gain = None, self.gain  # before the norm it would change next to nothing

    def add_norms(self, part: str, cfg: c.Config) -> None:
        super().add_norms(part, cfg)
        self.add_module(f"{part}_post_norm", NORMS[cfg.norm](cfg.width, cfg.eps))

    def sum(self, x: Tensor, part: str, total: str, step: Step) -> Tensor:
        y = self.normed(f"{part}_post_norm", self.run(part, self.normed(f"{part}_norm", x), step))
        if self.last_gain is not None:
            y = tap(ops.scaled(y, self.last_gain), f"{part}_scaled: B T D")
        return tap(ops.add(x, y), f"{total}: B T D")


class ScaledBlock(SandwichBlock):
    """A sandwich whose output is times one stored number (Gemma 4)."""

    axes = {"scalar": "1"}
    scalar: Tensor

    def __init__(self, cfg: c.Config, spec: c.Layer, table: Embedding | None = None) -> None:
        super().__init__(cfg, spec, table)
        self.register_buffer("scalar", torch.ones(1))

    def forward(self, x: Tensor, step: Step) -> Tensor:
        x = self.sum(self.sum(x, self.mixer, "mid", step), "ffn", "summed", step)
        return tap(ops.multiplied(x, self.scalar), "out: B T D")


class InputBlock(ScaledBlock):
    """A scaled sandwich that reads its tokens once more behind its two parts, and norms what that makes (Gemma 4 E2B)."""

    def __init__(self, cfg: c.Config, spec: c.Layer, table: Embedding | None = None, norm: AnyNorm | None = None) -> None:
        super().__init__(cfg, spec, table)
        assert spec.input is not None and norm is not None
        self.input = LayerInput(cfg, spec.input, norm)
        self.input_post_norm = NORMS[cfg.norm](cfg.width, cfg.eps)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        x = self.sum(self.sum(x, self.mixer, "mid", step), "ffn", "summed", step)
        y = self.normed("input_post_norm", self.run("input", x, step))
        return tap(ops.multiplied(tap(ops.add(x, y), "joined: B T D"), self.scalar), "out: B T D")


class ScaledRowsBlock(ScaledBlock):
    """A scaled sandwich whose feed-forward part reads the rows themselves, as its parts norm them (Gemma 4 26B-A4B)."""

    def add_norms(self, part: str, cfg: c.Config) -> None:
        super().add_norms(part, cfg)
        if part == "ffn":
            del self.ffn_norm

    def normed(self, norm: str, x: Tensor) -> Tensor:
        return x if norm == "ffn_norm" else super().normed(norm, x)


class AfterBlock(Block):
    """A norm of what each part made, before the sum, and none before the part (OLMo 2, arXiv 2501.00656)."""

    def sum(self, x: Tensor, part: str, total: str, step: Step) -> Tensor:
        return tap(ops.add(x, self.normed(f"{part}_norm", self.run(part, x, step))), f"{total}: B T D")


class HalfNormedBlock(Block):
    """A norm before the feed-forward part alone (ModernBERT's first block, arXiv 2412.13663)."""

    def add_norms(self, part: str, cfg: c.Config) -> None:
        if part != self.mixer:
            super().add_norms(part, cfg)

    def normed(self, norm: str, x: Tensor) -> Tensor:
        return super().normed(norm, x) if hasattr(self, norm) else x


class BareBlock(Block):
    """A norm before each part and no sums: what a part makes goes on alone."""

    def sum(self, x: Tensor, part: str, total: str, step: Step) -> Tensor:
        return tap(ops.identity(self.run(part, self.normed(f"{part}_norm", x), step)), f"{total}: B T D")


class ParallelBlock(Block):
    """Both parts read x at once through a norm each, and join it (Falcon, arXiv 2311.16867)."""

    def forward(self, x: Tensor, step: Step) -> Tensor:
        return self.sum_both(x, self.normed(f"{self.mixer}_norm", x), self.normed("ffn_norm", x), step)

    def sum_both(self, x: Tensor, to_attn: Tensor, to_ffn: Tensor, step: Step) -> Tensor:
        """Add to x what attention makes of its rows and what the feed-forward part makes of its own."""
        attn, ffn = self.run(self.mixer, to_attn, step), self.run("ffn", to_ffn, step)
        return tap(ops.add(x, tap(ops.add(attn, ffn), "both: B T D")), "out: B T D")


class OneNormBlock(ParallelBlock):
    """Both parts read x at once through the same norm."""

    def add_norms(self, part: str, cfg: c.Config) -> None:
        if part == self.mixer:
            super().add_norms(part, cfg)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        rows = self.normed(f"{self.mixer}_norm", x)
        return self.sum_both(x, rows, rows, step)


ORDERS = {
    "pre": Block, "post": PostBlock, "sandwich": SandwichBlock, "parallel": OneNormBlock, "parallel, two norms": ParallelBlock,
    "after": AfterBlock, "half": HalfNormedBlock, "bare": BareBlock, "sandwich, scaled": ScaledBlock,
    "sandwich, scaled, rows": ScaledRowsBlock,
}  # fmt: skip
NORMED_RESULT = {order for order, kind in ORDERS.items() if issubclass(kind, SandwichBlock | AfterBlock)}
"""Orders in which a norm stands between what a part made and its sum."""


def block(cfg: c.Config, spec: c.Layer, table: Embedding | None = None, norm: AnyNorm | None = None) -> Block:
    """Make a block. table: of distance biases, norm: of what blocks read beside their rows, each shared by all blocks."""
    assert spec.ffn.width or (spec.order == "pre" and spec.cross is None)  # a part alone has its norm before it
    assert spec.second is None or (spec.order == "pre" and spec.cross is None and spec.ffn.width)
    assert spec.input is None or spec.order == "sandwich, scaled"
    made: Block
    if spec.input is not None:
        made = InputBlock(cfg, spec, table, norm)
    else:
        made = (ORDERS[spec.order] if spec.second is None else TwoMixerBlock)(cfg, spec, table)
    for path, rank in spec.ranks:
        thin(made, path, rank)
    return made
