"""What others ask of a kind of attention, and the biases by distance that one may have.

A spec answers for itself, so that counting, ranks, tables and the catalogue know no kind by name.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar, Self

if TYPE_CHECKING:
    from pellucid.config import Attention, Latent


@dataclass(frozen=True)
class Buckets:
    """T5's learned bias for each bucket of distance, arXiv 1910.10683. own: each layer has its own table (UMT5, arXiv 2304.09151)."""

    count: int
    reach: int
    bidirectional: bool
    own: bool = False


@dataclass(frozen=True)
class Alibi:
    """A bias that falls with distance, one slope a head (arXiv 2108.12409), times scale.

    rounded: it is a product of bfloat16 numbers and of the key's position, as Falcon was trained with.
    """

    scale: float = 1.0
    rounded: bool = False


Products = tuple[str, tuple[int | tuple[int, ...], ...]]  # letters, and the factors that they stand for; a tuple is a sum


class AttentionSpec:
    """What others ask of a kind of attention. The answers here are those of causal attention without limits.

    A kind says itself: heads, kv_heads (None where all heads share what is stored), rope, kind (a name), head_width (displayed) and stored.
    """

    stored: ClassVar[tuple[str, ...]]  # the letters of what it stores of a token, one text for each tensor
    part: ClassVar[str] = "attn"  # its name in a block
    keys: str = "own"  # whose keys and values it reads: see Attention.keys
    causal: bool = True
    window: int | None = None
    chunk: int | None = None
    buckets: Buckets | None = None
    alibi: Alibi | None = None
    fill: float | None = None
    state_products: ClassVar[int] = 0  # products of a state that a token costs

    @property
    def limits(self) -> tuple[int | None, int | None]:
        """Return the most keys that a query sees, and the positions of a chunk; None where there is no such limit."""
        return self.window, self.chunk

    @property
    def uncompressed(self) -> tuple[int, int, int] | None:
        """K, R and W: what a head would store of a token if each kept its own; None where what is stored is not compressed."""
        return None

    @property
    def state_shape(self) -> tuple[int, int, int] | None:
        """Return H, K and W of the matrices that it keeps of a text of any length; None of a kind that keeps rows alone."""
        return None

    @property
    def state(self) -> int:
        """Return the numbers of its state."""
        return 0 if self.state_shape is None else prod(self.state_shape)

    def rows_kept(self, context: int) -> int:
        """Return the most rows that a text of this length needs in the KV cache: a window or a chunk bounds them."""
        return min(n for n in (context, self.window, self.chunk) if n is not None)

    def without_index(self) -> Self:
        """Return this spec without an indexer, which leaves only the keys it chose."""
        return self

    def read_by_heads(self, width: int) -> tuple[int, ...]:
        """Return the sizes of what all heads read of a row, each for itself: x of this width, unless nothing here has heads."""
        return (width,) if getattr(self, "heads", 0) else ()

    def on_rank(self, row: int, groups: int) -> int:
        """Return the part of a token's row size `row` on a rank with this many groups: all, where heads share what is stored."""
        return row

    def products(self, rows: int, seen: int, source: int) -> Iterator[Products]:
        """Yield closed forms that the multiply-adds of its op may have, for rows that see `seen` keys, or a source's; none here."""
        yield from ()

    def as_heads(self, groups: int) -> "Attention | None":
        """Return this attention with keys and values in `groups` groups; None if there is no such attention."""
        return None

    def as_latent(self, rank: int | None) -> "Latent | None":
        """Return this attention as MLA, with a latent of this rank, or by its heads' width; None if there is no such attention."""
        return None
