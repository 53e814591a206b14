"""One block: norm, attention, add; norm, feed-forward, add. Every part is chosen here, once, by what its config is."""

from torch import Tensor, nn

from pellucid import config as c
from pellucid import ops
from pellucid.parts.attention import Attention, CrossAttention
from pellucid.parts.latent import Latent
from pellucid.parts.linear import Embedding
from pellucid.parts.mlp import GatedMlp, Mlp
from pellucid.parts.moe import Moe
from pellucid.parts.norm import NORMS
from pellucid.step import Step
from pellucid.tap import tap


def attention(cfg: c.Config, spec: c.Attention | c.Latent, table: Embedding | None) -> Attention | Latent:
    return Latent(cfg, spec) if isinstance(spec, c.Latent) else Attention(cfg, spec, table)


def feed_forward(cfg: c.Config, spec: c.Mlp | c.Moe) -> Mlp | Moe:
    if isinstance(spec, c.Moe):
        return Moe(cfg, spec)
    return GatedMlp(cfg, spec) if spec.gated else Mlp(cfg, spec)


class Block(nn.Module):
    """x [B T D] -> [B T D], with the norm before each part (arXiv 2002.04745)."""

    def __init__(self, cfg: c.Config, spec: c.Layer, table: Embedding | None = None) -> None:
        super().__init__()
        norm = NORMS[cfg.norm]
        self.attn_norm, self.attn = norm(cfg.width, cfg.eps), attention(cfg, spec.attn, table)
        self.ffn_norm, self.ffn = norm(cfg.width, cfg.eps), feed_forward(cfg, spec.ffn)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        return self.fed(self.attended(x, step), step)

    def attended(self, x: Tensor, step: Step) -> Tensor:
        y = tap(self.attn(tap(self.attn_norm(x), "attn_norm: B T D"), step), "attn: B T D")
        return tap(ops.add(x, y), "mid: B T D")

    def fed(self, x: Tensor, step: Step) -> Tensor:
        y = tap(self.ffn(tap(self.ffn_norm(x), "ffn_norm: B T D"), step), "ffn: B T D")
        return tap(ops.add(x, y), "out: B T D")


class CrossBlock(Block):
    """A decoder's block that, between its own past and its feed-forward part, listens to the encoder."""

    def __init__(self, cfg: c.Config, spec: c.Layer, table: Embedding | None = None) -> None:
        super().__init__(cfg, spec, table)
        assert spec.cross is not None
        self.cross_norm, self.cross = NORMS[cfg.norm](cfg.width, cfg.eps), CrossAttention(cfg, spec.cross)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        x = self.attended(x, step)
        y = tap(self.cross(tap(self.cross_norm(x), "cross_norm: B T D"), step), "cross: B T D")
        return self.fed(tap(ops.add(x, y), "crossed: B T D"), step)


def block(cfg: c.Config, spec: c.Layer, table: Embedding | None = None) -> Block:
    return CrossBlock(cfg, spec, table) if spec.cross else Block(cfg, spec, table)
