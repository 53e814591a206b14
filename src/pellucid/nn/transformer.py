"""The models: plain modules made from a Config.

Decoder(tokens [B T], step) -> logits [B T V]
Encoder(tokens [B T], step) -> logits [B T V], or rows [B T D] where it has no head; every token sees every other
EncoderDecoder(source [B S], tokens [B T], step) -> logits [B T V]; its cross attention keeps keys and values of the encoder's rows
"""

from collections.abc import Callable
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor, nn

from pellucid import config as c
from pellucid import ops
from pellucid.batch.step import Step
from pellucid.errors import ConfigError
from pellucid.nn.block import block
from pellucid.nn.head import LogitsHead
from pellucid.nn.linear import Embedding, Linear
from pellucid.nn.norm import NORMS
from pellucid.watching.tap import tap

Kind = TypeVar("Kind", bound=nn.Module)


def run(block: nn.Module, x: Tensor, step: Step) -> Tensor:
    """Run a block on the rows x [B T D]."""
    return block(x, step)  # type: ignore[no-any-return]


def share_weights(blocks: nn.ModuleList, shares: tuple[int, ...]) -> None:
    """Give each block the very parameters of the one that it shares its weights with."""
    for own, first in zip(blocks, shares, strict=False):
        for path, part in own.named_modules():
            part._parameters.update(blocks[first].get_submodule(path)._parameters)


class Stack(nn.Module):
    """What changes the embedding's rows (`add_entry`), the blocks, and the last norm. Blocks share a table of distance biases, if any.

    run_block: how a block runs; training may have one that keeps less for the backward pass.
    """

    run_block: Callable[[nn.Module, Tensor, Step], Tensor] = staticmethod(run)
    axes = {"positions": "P D", "types": "Y D", "tasks": "Y D", "embed_norm": "D", "widen": "D L", "norm": "D"}

    def __init__(self, cfg: c.Config, layers: tuple[c.Layer, ...]) -> None:
        super().__init__()
        first = next((one.attn for one in layers if one.attn.buckets is not None), None)
        shared = first is not None and first.buckets is not None and not first.buckets.own
        table = Embedding(first.buckets.count, first.heads) if shared else None  # type: ignore[union-attr]
        reads = next((one.input for one in layers if one.input is not None), None)
        norm = None if reads is None else NORMS[cfg.norm](reads.width, cfg.eps)
        self.reads_entry = reads is not None  # behind the first block too
        self.layers = nn.ModuleList(block(cfg, layer, table, norm) for layer in layers)
        share_weights(self.layers, cfg.shares)
        self.norm = NORMS[cfg.norm](cfg.width, cfg.eps) if cfg.final_norm else None

    def add_entry(self, cfg: c.Config, norm_first: bool = False) -> None:
        """Make what changes the embedding's rows before the first block; called last by a model, so that its weights keep their order.

        A change that the config does not ask for is None. norm_first: the norm reads the embedding's rows, and its own rows get positions.
        """
        self.scale = cfg.embed_scale if cfg.embed_scale != 1.0 and not norm_first else None  # a norm would take it away again
        self.entered = letter(cfg) if cfg.narrow_entry else "D"  # the letter of the rows that positions, types and norm have
        width = cfg.width if self.entered == "D" else cfg.embed_width or cfg.width
        tables = {"positions": "P", "types": "Y", "tasks": "Y"}
        self.axes = self.axes | {name: f"{rows} {self.entered}" for name, rows in tables.items()} | {"embed_norm": self.entered}
        self.widen = Linear(cfg.embed_width, cfg.width, cfg.narrow_entry) if cfg.embed_width is not None else None
        self.sinusoids = width if cfg.sinusoids else None  # their width
        self.last_wave = cfg.last_wave
        self.positions = Embedding(cfg.positions + cfg.offset, width) if cfg.positions and not cfg.sinusoids else None
        self.offset = cfg.offset
        self.types = Embedding(cfg.types, width) if cfg.types else None
        self.tasks = Embedding(cfg.tasks, width) if cfg.tasks else None
        self.embed_norm = NORMS[cfg.norm](width, cfg.eps) if cfg.embed_norm else None
        self.norm_first = norm_first

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """The embedding's rows [B T D] -> the last rows [B T D]. A step with an entry brings the rows that enter a later block."""
        if step.entry is None or self.reads_entry:
            x = self.enter(x, step)
        if self.reads_entry:
            step.entered = x
        first, x = step.entry or (0, x)
        for layer in islice(self.layers, first, None):
            x = self.run_block(layer, x, step)
        return self.last_norm(x)

    def enter(self, x: Tensor, step: Step) -> Tensor:
        """The embedding's rows [B T D] -> the rows that enter the first block."""
        rows = f"B T {self.entered}"
        if self.scale is not None:
            x = tap(ops.scaled(x, ops.rounded(self.scale, x.dtype)), f"scaled: {rows}")
        if self.widen is not None and self.entered == "D":
            x = tap(self.widen(x), "widen: B T D")
        if self.embed_norm is not None and self.norm_first:
            x = tap(self.embed_norm(x), f"embed_norm: {rows}")
        if self.sinusoids is not None:
            waves = ops.sinusoids(step.position_ids, self.sinusoids, x.dtype, self.offset, self.last_wave)
            x = tap(ops.add(x, tap(waves, f"positions: {rows}")), f"start: {rows}")
        if self.positions is not None:
            x = tap(ops.add(x, tap(self.positions(step.position_ids, self.offset), f"positions: {rows}")), f"start: {rows}")
        if self.types is not None:
            types = torch.zeros_like(step.position_ids) if step.types is None else step.types
            x = tap(ops.add(x, tap(self.types(types), f"types: {rows}")), f"typed: {rows}")
        if self.tasks is not None:
            task = torch.zeros_like(step.position_ids) if step.task is None else step.task
            x = tap(ops.add(x, tap(self.tasks(task), f"tasks: {rows}")), f"tasked: {rows}")
        if self.embed_norm is not None and not self.norm_first:
            x = tap(self.embed_norm(x), f"embed_norm: {rows}")
        return x if self.widen is None or self.entered == "D" else tap(self.widen(x), "widen: B T D")

    def last_norm(self, x: Tensor) -> Tensor:
        return x if self.norm is None else tap(self.norm(x), "norm: B T D")

    def entrance(self) -> str | None:
        """Return the name of the tensor that enters the first block. None if that is the embedding's rows, unchanged."""
        if self.widen is not None and self.entered != "D":
            return "widen"
        norm = {"embed_norm": self.embed_norm}
        names = {"start": self.sinusoids or self.positions, "typed": self.types, "tasked": self.tasks}
        ordered = norm | names if self.norm_first else names | norm
        present = [name for name, part in ({"scaled": self.scale, "widen": self.widen} | ordered).items() if part is not None]
        return present[-1] if present else None


class Decoder(Stack, LogitsHead):
    """tokens [B T] -> logits [B T V], or of the step's wanted rows alone; without a head the last rows [B T D].

    multi_token: modules of nn/multi_token.py that train with it, None for most. They read the rows that the step keeps.
    """

    axes = {**Stack.axes, "embed": "V D", "head": "V D", "narrow": "L D", "pooler": "D D"}
    edition = 0  # grows when adapters change its products, so that recorded plans notice

    def __init__(self, cfg: c.Config) -> None:
        super().__init__(cfg, cfg.layers)
        self.config, self.letter = cfg, letter(cfg)
        self.axes = self.axes | dict.fromkeys(("embed", "head"), f"V {self.letter}")
        self.embed = Embedding(cfg.vocab, cfg.embed_width or cfg.width)
        self.add_entry(cfg)
        if cfg.head:
            self.add_head(cfg, self.embed)
        else:
            self.head = None  # type: ignore[assignment]
        self.pooler = Linear(cfg.width, cfg.width, True) if cfg.pooler else None
        self.multi_token: nn.ModuleList | None = None

    def forward(self, tokens: Tensor, step: Step | None = None) -> Tensor:
        step = step or Step.plain(tokens)
        if self.reads_entry:
            step.ids = tokens
        x = super().forward(tap(self.embed(tokens), f"embed: B T {self.letter}"), step)
        if self.multi_token is not None:
            step.last = x
        if self.head is not None:
            return self.logits(x, step)
        if self.pooler is not None:
            self.pool(x, step, self.pooler)
        return x

    def pool(self, x: Tensor, step: Step, pooler: Linear) -> None:
        """Show a watcher what `pooler` makes of each text's first row; the model's output stays the rows."""
        starts = torch.tensor([s.start for s in step.spans] or [0], device=x.device)
        token = (torch.arange(len(x), device=x.device)[:, None] * x.shape[1] + starts).flatten()
        dense = tap(pooler(tap(ops.gather(x, token), "first: N D", token)), "pooler: N D", token)
        tap(ops.tanh(dense), "pooled: N D", token)


class Encoder(Decoder):
    """A Decoder whose config lets all tokens see each other: it fills blanks, or gives rows, and generates nothing (arXiv 1810.04805)."""


class EncoderDecoder(LogitsHead):
    """source [B S], tokens [B T] -> logits [B T V]. arXiv 1706.03762."""

    axes = {"embed": "V D", "head": "V D", "narrow": "L D"}
    edition = 0

    def __init__(self, cfg: c.Config) -> None:
        super().__init__()
        assert cfg.encoder is not None
        self.config, self.letter = cfg, letter(cfg)
        self.axes = self.axes | dict.fromkeys(("embed", "head"), f"V {self.letter}")
        self.embed = Embedding(cfg.vocab, cfg.embed_width or cfg.width)
        self.add_head(cfg, self.embed)
        self.encoder, self.decoder = Stack(cfg, cfg.encoder), Stack(cfg, cfg.layers)
        self.encoder.add_entry(cfg)
        self.decoder.add_entry(cfg, cfg.norm_first)

    def encode(self, source: Tensor, step: Step | None = None) -> tuple[Tensor, Step]:
        """Run the encoder. Returns its rows [B S D] and their step, which a decoder's Step takes as `source`."""
        step = step or Step.plain(source)
        return self.encoder(tap(self.embed(source), f"source: B S {self.letter}"), step), step

    def decode(self, tokens: Tensor, step: Step) -> Tensor:
        """Run the decoder over the memory that the step brings or has kept. Returns logits [B T V]."""
        return self.logits(self.decoder(tap(self.embed(tokens), f"embed: B T {self.letter}"), step), step)

    def forward(self, source: Tensor | None, tokens: Tensor, step: Step | None = None, source_step: Step | None = None) -> Tensor:
        step = step or Step.plain(tokens)
        if source is not None:
            step.source = self.encode(source, source_step)
        return self.decode(tokens, step)


def letter(cfg: c.Config) -> str:
    """Return the letter of the embedding's width: D, or L if it differs from the model's."""
    return "D" if cfg.embed_width is None else "L"


def build(cfg: c.Config) -> Decoder | EncoderDecoder:
    """Build the module of a config, with unset weights on the default device. A ConfigError if it is too large to hold."""
    kind = EncoderDecoder if cfg.encoder is not None else Encoder if cfg.bidirectional else Decoder
    try:
        if torch.get_default_device().type != "meta":
            with torch.device("meta"):
                kind(cfg)  # a tensor of too many bytes is refused before memory is filled with the smaller ones
        return kind(cfg)
    except RuntimeError as broken:  # more bytes than 63 bits count, or than the machine has
        raise ConfigError("config.huge", reason=str(broken).split("\n")[0]) from None


def retie(model: Decoder | EncoderDecoder) -> None:
    """Point a tied head, and blocks that share weights, at the first one's parameters, which may be new."""
    config: c.Config = model.config
    if config.tied:
        model.head._parameters["weight"] = model.embed._parameters["weight"]
    if config.shares:
        share_weights(model.get_submodule("layers"), config.shares)  # type: ignore[arg-type]


def cast(model: Kind, dtype: torch.dtype) -> Kind:
    """Cast parameters to dtype. Buffers keep theirs: `model.to(dtype)` would round the router's float32 correction."""
    for p in model.parameters():
        p.data = p.data.to(dtype)
    return model
