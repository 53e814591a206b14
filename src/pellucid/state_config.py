"""Layers that keep a state, or a few rows, in attention's place: a text of any length costs them the same."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from pellucid.attention_spec import AttentionSpec, Products


class InPlaceOfAttention(AttentionSpec):
    """What all kinds in attention's place answer: no head attends."""

    heads: ClassVar[int] = 0
    kv_heads: ClassVar[None] = None
    rope: ClassVar[None] = None
    head_width: ClassVar[int] = 0


class StateSpec(InPlaceOfAttention):
    """What all kinds with a state answer. rows: that their convolutions sum, a token's own included."""

    rows: int

    @property
    def channels(self) -> int:
        """Return the numbers of a token that its convolutions sum: two rows of a group, and one of a head."""
        raise NotImplementedError

    @property
    def limits(self) -> tuple[int | None, int | None]:
        return self.rows, None

    def rows_kept(self, context: int) -> int:
        return min(context, self.rows)

    def products(self, rows: int, seen: int, source: int) -> Iterator[Products]:
        """Yield the products of a token: with its state, and of each channel with its last rows."""
        each = self.state_products
        yield f"T·({each}·H·K·W + J·(2·G·K + H·W))", (rows, (each * self.state, self.rows * self.channels))


@dataclass(frozen=True)
class ShortConv(InPlaceOfAttention):
    """A gated convolution over a few tokens, in attention's place (LFM2, arXiv 2511.23404). It has no heads."""

    window: int  # tokens that it sums, itself included
    bias: bool = False

    kind: ClassVar[str] = "conv"
    part: ClassVar[str] = "conv"
    stored: ClassVar[tuple[str, ...]] = ("D",)


@dataclass(frozen=True)
class GatedDelta(StateSpec):
    """A matrix of each head that every token fades and rewrites, in attention's place (Gated DeltaNet, arXiv 2412.06464)."""

    key_heads: int
    key: int  # width of one
    value_heads: int
    value: int
    rows: int = 4  # that the convolutions of queries, keys and values sum, a token's own included
    act: str = "silu"  # of their sums
    beta_most: float = 1.0  # what beta stays below; under 2 a row may turn the sign of what its key holds (OLMo Hybrid, arXiv 2411.12537)
    out_eps: float | None = None  # of the norm of what is read; None: the model's

    kind: ClassVar[str] = "delta"
    part: ClassVar[str] = "delta"
    stored: ClassVar[tuple[str, ...]] = "G·K", "G·K", "H·W"
    state_products: ClassVar[int] = 3  # read, corrected and read again

    @property
    def state_shape(self) -> tuple[int, int, int]:
        return self.value_heads, self.key, self.value

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key + self.value_heads * self.value


@dataclass(frozen=True)
class Mamba2(StateSpec):
    """A matrix of each head that every token fades and adds to, in attention's place (Mamba-2, arXiv 2405.21060)."""

    groups: int  # of heads that share B and C
    state_width: int  # N of the paper: of a row of B and C
    state_heads: int
    row_width: int  # P of the paper: of a head's row of x
    rows: int = 4  # that the convolutions of x, B and C sum, a token's own included
    act: str = "silu"  # of their sums
    kernel_bias: bool = True  # of the convolutions
    bias: bool = False  # of all products
    least: float = 0.0  # the limits of dt
    most: float | None = None
    gated_norm: str = "of gated"  # of what is read: "of gated", after its gate;  "then gated", before it;  "none", the gate alone
    factors: tuple[float, ...] = ()  # of z, x, b, c and dt, before the convolutions (Falcon-H1)

    kind: ClassVar[str] = "Mamba-2"
    part: ClassVar[str] = "mamba"
    stored: ClassVar[tuple[str, ...]] = "H·W", "G·K", "G·K"
    state_products: ClassVar[int] = 2  # written and read

    @property
    def state_shape(self) -> tuple[int, int, int]:
        return self.state_heads, self.state_width, self.row_width

    @property
    def channels(self) -> int:
        return 2 * self.groups * self.state_width + self.state_heads * self.row_width


@dataclass(frozen=True)
class Mamba1(StateSpec):
    """One matrix of all channels, each number of which fades by itself, in attention's place (Mamba, arXiv 2312.00752)."""

    state_width: int  # N of the paper: of a row of B and C, and of a channel's state
    row_width: int  # channels: of a row of x
    rank: int  # of dt, which a thin product makes of x
    rows: int = 4  # that the convolution of x sums, a token's own included
    act: str = "silu"  # of its sums
    kernel_bias: bool = True  # of the convolution
    bias: bool = False  # of the products before and behind the state
    norms: str = "none"  # of dt's thin rows, of B and of C: "none";  "rms";  "rms, no weight" (Falcon Mamba)
    norm_eps: float = 1e-6

    kind: ClassVar[str] = "Mamba-1"
    part: ClassVar[str] = "mamba"
    stored: ClassVar[tuple[str, ...]] = ("H·W",)
    state_products: ClassVar[int] = 2  # written and read

    @property
    def state_shape(self) -> tuple[int, int, int]:
        return 1, self.state_width, self.row_width

    @property
    def channels(self) -> int:
        return self.row_width

    def products(self, rows: int, seen: int, source: int) -> Iterator[Products]:
        yield "T·(2·H·K·W + J·H·W)", (rows, (2 * self.state, self.rows * self.channels))
