"""The models: plain modules made from a Config.

Decoder(tokens [B T], step) -> logits [B T V]
EncoderDecoder(source [B S], tokens [B T], step) -> logits [B T V]; its cross attention remembers the encoder's rows
"""

from typing import TypeVar

import torch
from torch import Tensor, nn

from pellucid import config as c
from pellucid import ops
from pellucid.parts.block import block
from pellucid.parts.linear import Embedding, Linear
from pellucid.parts.norm import NORMS
from pellucid.step import Step
from pellucid.tap import tap

Kind = TypeVar("Kind", bound=nn.Module)


class Stack(nn.Module):
    """Blocks and the last norm. A table of distance biases, where there is one, is shared by all blocks."""

    def __init__(self, cfg: c.Config, layers: tuple[c.Layer, ...]) -> None:
        super().__init__()
        first = layers[0].attn
        buckets = first.buckets if isinstance(first, c.Attention) else None
        table = Embedding(buckets.count, first.heads) if buckets else None
        self.layers = nn.ModuleList(block(cfg, layer, table) for layer in layers)
        self.norm = NORMS[cfg.norm](cfg.width, cfg.eps)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        for layer in self.layers:
            x = layer(x, step)
        return tap(self.norm(x), "norm: B T D")


class Decoder(Stack):
    """tokens [B T] -> logits [B T V], or of the step's wanted rows alone."""

    axes = {"embed": "V D", "positions": "P D", "head": "V D"}

    def __init__(self, cfg: c.Config) -> None:
        super().__init__(cfg, cfg.layers)
        self.config = cfg
        self.embed = Embedding(cfg.vocab, cfg.width)
        self.positions = Embedding(cfg.positions, cfg.width) if cfg.positions else None
        self.enter = self.embedded if self.positions is None else self.placed
        self.head = Linear(cfg.width, cfg.vocab, False)
        tie(self.head, self.embed, cfg)

    def embedded(self, tokens: Tensor, step: Step) -> Tensor:
        return tap(self.embed(tokens), "embed: B T D")

    def placed(self, tokens: Tensor, step: Step) -> Tensor:
        assert self.positions is not None
        at = tap(self.positions(step.places), "positions: B T D")
        return tap(ops.add(self.embedded(tokens, step), at), "start: B T D")

    def forward(self, tokens: Tensor, step: Step | None = None) -> Tensor:
        step = step or Step.plain(tokens)
        return logits(self.head, super().forward(self.enter(tokens, step), step), step)


class EncoderDecoder(nn.Module):
    """source [B S], tokens [B T] -> logits [B T V]. arXiv 1706.03762."""

    axes = {"embed": "V D", "head": "V D"}

    def __init__(self, cfg: c.Config) -> None:
        super().__init__()
        assert cfg.encoder is not None
        self.config = cfg
        self.embed, self.head = Embedding(cfg.vocab, cfg.width), Linear(cfg.width, cfg.vocab, False)
        self.encoder, self.decoder = Stack(cfg, cfg.encoder), Stack(cfg, cfg.layers)
        self.finish = self.plain if cfg.logit_scale == 1.0 else self.scaled
        tie(self.head, self.embed, cfg)

    def plain(self, x: Tensor) -> Tensor:
        return x

    def scaled(self, x: Tensor) -> Tensor:
        return tap(ops.scaled(x, self.config.logit_scale), "scaled: B T D")

    def encode(self, source: Tensor, step: Step | None = None) -> tuple[Tensor, Step]:
        """What a decoder's Step takes as `source`: the encoder's rows [B S D], and the step that made them."""
        step = step or Step.plain(source)
        return self.encoder(tap(self.embed(source), "source: B S D"), step), step

    def decode(self, tokens: Tensor, step: Step) -> Tensor:
        """Logits of the decoder's rows, over the memory that the step brings or has kept."""
        return logits(self.head, self.finish(self.decoder(tap(self.embed(tokens), "embed: B T D"), step)), step)

    def forward(self, source: Tensor | None, tokens: Tensor, step: Step | None = None, source_step: Step | None = None) -> Tensor:
        step = step or Step.plain(tokens)
        if source is not None:
            step.source = self.encode(source, source_step)
        return self.decode(tokens, step)


def logits(head: Linear, x: Tensor, step: Step) -> Tensor:
    """The head over all rows, or over those whose logits the step wants."""
    if step.wanted is None:
        return tap(head(x), "logits: B T V")
    return tap(head(x[:, step.wanted]), "logits: B N V", step.wanted)


def tie(head: Linear, embed: Embedding, cfg: c.Config) -> None:
    """One table for the first and the last product, where the config says so (arXiv 1608.05859)."""
    if cfg.tied:
        head.weight = embed.weight


def build(cfg: c.Config) -> Decoder | EncoderDecoder:
    """The module of a config, with unset weights on the default device."""
    return Decoder(cfg) if cfg.encoder is None else EncoderDecoder(cfg)


def cast(model: Kind, dtype: torch.dtype) -> Kind:
    """Parameters to dtype; buffers keep theirs, since `model.to(dtype)` would round the router's float32 correction."""
    for p in model.parameters():
        p.data = p.data.to(dtype)
    return model
