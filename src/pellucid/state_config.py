"""Layers that keep a state, or a few rows, in attention's place: a text of any length costs them the same."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from pellucid.attention_spec import AttentionSpec, Products


@dataclass(frozen=True)
class ShortConv(AttentionSpec):
    """A gated convolution over a few tokens, in attention's place (LFM2, arXiv 2511.23404). It has no heads."""

    window: int  # tokens that it sums, itself included
    bias: bool = False

    kind: ClassVar[str] = "conv"
    part: ClassVar[str] = "conv"
    heads: ClassVar[int] = 0
    kv_heads: ClassVar[None] = None
    rope: ClassVar[None] = None
    head_width: ClassVar[int] = 0
    stored: ClassVar[tuple[str, ...]] = ("D",)


@dataclass(frozen=True)
class GatedDelta(AttentionSpec):
    """A matrix of each head that every token fades and rewrites, in attention's place (Gated DeltaNet, arXiv 2412.06464)."""

    key_heads: int
    key: int  # width of one
    value_heads: int
    value: int
    rows: int = 4  # that the convolutions of queries, keys and values sum, a token's own included
    act: str = "silu"  # of their sums

    kind: ClassVar[str] = "delta"
    part: ClassVar[str] = "delta"
    heads: ClassVar[int] = 0  # none that attends
    kv_heads: ClassVar[None] = None
    rope: ClassVar[None] = None
    head_width: ClassVar[int] = 0
    stored: ClassVar[tuple[str, ...]] = "G·K", "G·K", "H·W"

    @property
    def limits(self) -> tuple[int | None, int | None]:
        return self.rows, None

    @property
    def state(self) -> int:
        return self.value_heads * self.key * self.value

    def rows_kept(self, context: int) -> int:
        return min(context, self.rows)

    def products(self, rows: int, seen: int, source: int) -> Iterator[Products]:
        """Yield the products of a token: a state is read twice and written once, and each channel sums a few rows."""
        channels = 2 * self.key_heads * self.key + self.value_heads * self.value
        yield "T·(3·H·K·W + J·(2·G·K + H·W))", (rows, (3 * self.state, self.rows * channels))
