"""One block: attention, add; cross attention, add; feed-forward, add; and norms where the config's order puts them.

Every part is chosen here, once, by what its config is.
"""

from torch import Tensor, nn

from pellucid import config as c
from pellucid import ops
from pellucid.batch.step import Step
from pellucid.nn.attention import Attention, CrossAttention, DistantAttention
from pellucid.nn.latent import Latent
from pellucid.nn.linear import Embedding
from pellucid.nn.mlp import GatedMlp, Mlp
from pellucid.nn.moe import Moe
from pellucid.nn.norm import NORMS
from pellucid.watching.tap import tap


def attention(cfg: c.Config, spec: c.Attention | c.Latent, table: Embedding | None) -> Attention | Latent:
    if isinstance(spec, c.Latent):
        return Latent(cfg, spec)
    return DistantAttention(cfg, spec, table) if spec.distances else Attention(cfg, spec, table)


def feed_forward(cfg: c.Config, spec: c.Mlp | c.Moe) -> Mlp | Moe:
    if isinstance(spec, c.Moe):
        return Moe(cfg, spec)
    return GatedMlp(cfg, spec) if spec.gated else Mlp(cfg, spec)


class Block(nn.Module):
    """x [B T D] -> [B T D], with the norm before each part (arXiv 2002.04745)."""

    attn: Attention | Latent
    ffn: Mlp | Moe
    leaves = "out"  # names what leaves it

    def __init__(self, cfg: c.Config, spec: c.Layer, table: Embedding | None = None) -> None:
        super().__init__()
        self.sums: list[tuple[str, str]] = []
        self.add("attn", attention(cfg, spec.attn, table), "mid", cfg)
        if spec.cross:  # between its own cache and its feed-forward part, a decoder listens to the encoder
            self.add("cross", CrossAttention(cfg, spec.cross), "crossed", cfg)
        self.add("ffn", feed_forward(cfg, spec.ffn), "out", cfg)

    def add(self, name: str, part: nn.Module, total: str, cfg: c.Config) -> None:
        """One part with its norms; total names x plus what it makes."""
        self.add_norms(name, cfg)
        self.add_module(name, part)
        self.sums.append((name, total))

    def add_norms(self, part: str, cfg: c.Config) -> None:
        self.add_module(f"{part}_norm", NORMS[cfg.norm](cfg.width, cfg.eps))

    def forward(self, x: Tensor, step: Step) -> Tensor:
        for part, total in self.sums:
            x = self.sum(x, part, total, step)
        return x

    def sum(self, x: Tensor, part: str, total: str, step: Step) -> Tensor:
        """x plus what the part makes of it."""
        return tap(ops.add(x, self.run(part, self.normed(f"{part}_norm", x), step)), f"{total}: B T D")

    def run(self, part: str, x: Tensor, step: Step) -> Tensor:
        return tap(getattr(self, part)(x, step), f"{part}: B T D")

    def normed(self, norm: str, x: Tensor) -> Tensor:
        return tap(getattr(self, norm)(x), f"{norm}: B T D")


class PostBlock(Block):
    """The norm after each sum (arXiv 1706.03762): what leaves the block is normed."""

    leaves = "ffn_norm"

    def sum(self, x: Tensor, part: str, total: str, step: Step) -> Tensor:
        return self.normed(f"{part}_norm", tap(ops.add(x, self.run(part, x, step)), f"{total}: B T D"))


class SandwichBlock(Block):
    """A norm before each part, and one more of what it made, before the sum (Gemma 2, arXiv 2408.00118)."""

    def add_norms(self, part: str, cfg: c.Config) -> None:
        super().add_norms(part, cfg)
        self.add_module(f"{part}_post_norm", NORMS[cfg.norm](cfg.width, cfg.eps))

    def sum(self, x: Tensor, part: str, total: str, step: Step) -> Tensor:
        y = self.run(part, self.normed(f"{part}_norm", x), step)
        return tap(ops.add(x, self.normed(f"{part}_post_norm", y)), f"{total}: B T D")


class ParallelBlock(Block):
    """Both parts read x at once through a norm each, and join it (Falcon, arXiv 2311.16867)."""

    reads = {"attn": "attn_norm", "ffn": "ffn_norm"}

    def forward(self, x: Tensor, step: Step) -> Tensor:
        rows = {norm: self.normed(norm, x) for norm in dict.fromkeys(self.reads.values())}
        made = [self.run(part, rows[norm], step) for part, norm in self.reads.items()]
        return tap(ops.add(x, tap(ops.add(*made), "both: B T D")), "out: B T D")


class OneNormBlock(ParallelBlock):
    """Both parts read x at once through the same norm."""

    reads = {"attn": "attn_norm", "ffn": "attn_norm"}

    def add_norms(self, part: str, cfg: c.Config) -> None:
        if f"{part}_norm" in self.reads.values():
            super().add_norms(part, cfg)


ORDERS = {"pre": Block, "post": PostBlock, "sandwich": SandwichBlock, "parallel": OneNormBlock, "parallel, two norms": ParallelBlock}


def block(cfg: c.Config, spec: c.Layer, table: Embedding | None = None) -> Block:
    return ORDERS[spec.order](cfg, spec, table)
