"""Every way the family varies, on one page. No torch here: a config is plain data, and prints as what it is.

`None` means that the part is absent. `Config.layers` is a tuple of layers, so that dense-then-experts, sliding-then-full and hybrids
are data. A variant is another part, chosen once, in a constructor. What others ask of a spec, it says itself.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar


@dataclass(frozen=True)
class Linear:
    """Positions divided by one factor, arXiv 2306.15595."""

    factor: float


@dataclass(frozen=True)
class Llama3:
    """Slow pairs divided by a factor, fast ones kept, a smooth passage between (Llama 3.1, arXiv 2407.21783)."""

    factor: float
    low: float
    high: float
    original: int


@dataclass(frozen=True)
class Yarn:
    """Interpolation by pair between two numbers of turns within the original context, arXiv 2309.00071; amount multiplies cos and sin."""

    factor: float
    original: int
    fast: float = 32.0
    slow: float = 1.0
    amount: float = 1.0
    truncate: bool = True


@dataclass(frozen=True)
class Dynamic:
    """A base that grows with the text beyond the original context; a row is turned by the length that the text has when the row is read."""

    factor: float
    original: int


@dataclass(frozen=True)
class LongRope:
    """One factor a pair, of two lists: the second for texts longer than the original context (arXiv 2402.13753); amount as in YaRN."""

    short: tuple[float, ...]
    long: tuple[float, ...]
    original: int
    amount: float = 1.0


@dataclass(frozen=True)
class Rope:
    """Rotary positions, arXiv 2104.09864: width channels of a head turn, in pairs side by side (interleaved) or half a width apart."""

    width: int
    theta: float = 10_000.0
    interleaved: bool = False
    scaling: Linear | Llama3 | Yarn | Dynamic | LongRope | None = None

    @property
    def by_length(self) -> bool:
        """True if the angles depend on the length of the text."""
        return isinstance(self.scaling, Dynamic | LongRope)


@dataclass(frozen=True)
class Buckets:
    """T5's learned bias for each bucket of distance, arXiv 1910.10683."""

    count: int
    reach: int
    bidirectional: bool


@dataclass(frozen=True)
class Alibi:
    """A bias that falls with distance, one slope a head (arXiv 2108.12409), times scale.

    rounded: it is a product of bfloat16 numbers and of the key's position, as Falcon was trained with.
    """

    scale: float = 1.0
    rounded: bool = False


@dataclass(frozen=True)
class Temper:
    """Queries that grow with their position p, times 1 + scale · ln(1 + ⌊(p + 1) / floor⌋), arXiv 2501.19399."""

    floor: int
    scale: float


@dataclass(frozen=True)
class Attention:
    """MHA where kv_heads equals heads, MQA where it is 1, GQA between (arXiv 1706.03762, 1911.02150, 2305.13245)."""

    heads: int
    kv_heads: int
    width: int  # of one head
    rope: Rope | None = None
    qk_norm: bool = False
    bias: bool = False  # of q, k and v
    out_bias: bool = False
    window: int | None = None  # tokens seen, itself included
    sinks: bool = False
    cap: float | None = None
    scale: float | None = None  # None: width ** -0.5
    causal: bool = True
    buckets: Buckets | None = None
    alibi: Alibi | None = None
    chunk: int | None = None  # positions; a query sees its own chunk alone
    qk_rms: bool = False  # queries and keys over their root mean square, after rope, without a weight
    temper: Temper | None = None
    distances: bool = False  # scores gain q · r, r one more key, of the distance between the two (arXiv 1901.02860)

    uncompressed: ClassVar[None] = None

    @property
    def kind(self) -> str:
        """The name of the kind: MHA, MQA or GQA."""
        return "MHA" if self.kv_heads == self.heads else "MQA" if self.kv_heads == 1 else "GQA"

    @property
    def head_width(self) -> int | str:
        """A head's width, as a person is shown it."""
        return self.width

    @property
    def limits(self) -> tuple[int | None, int | None]:
        """The most keys that a query sees, and the positions of a chunk; None where there is no such limit."""
        return self.window, self.chunk

    def rows_kept(self, context: int) -> int:
        """The most rows that a text of this length needs in the KV cache: a window or a chunk stops it growing."""
        return min(n for n in (context, self.window, self.chunk) if n is not None)

    def without_index(self) -> "Attention":
        return self


@dataclass(frozen=True)
class Index:
    """Small heads that score every key before attention runs; a query then sees the best `chosen` of them (arXiv 2512.02556)."""

    heads: int
    width: int  # of one head
    chosen: int
    eps: float = 1e-6


@dataclass(frozen=True)
class Latent:
    """MLA: keys and values grow from one small latent, and only that and a shared rotary key are stored (arXiv 2405.04434)."""

    heads: int
    q_rank: int | None
    kv_rank: int
    key: int  # content width of a key
    value: int
    rope: Rope
    bias: bool = False  # of q_a, kv_a and o
    eps: float = 1e-6
    scale: float | None = None  # None: (key + rope.width) ** -0.5
    index: Index | None = None

    kind: ClassVar[str] = "MLA"
    kv_heads: ClassVar[None] = None  # what is stored serves all heads, so ranks cannot share it out
    causal: ClassVar[bool] = True
    window: ClassVar[None] = None
    chunk: ClassVar[None] = None
    buckets: ClassVar[None] = None
    alibi: ClassVar[None] = None

    @property
    def head_width(self) -> int | str:
        """The widths of a key's content and rotary part, as a person is shown them."""
        return f"{self.key}+{self.rope.width}"

    @property
    def uncompressed(self) -> tuple[int, int, int]:
        """K, R and W: what a head would store of a token if each kept its own keys and values."""
        return self.key, self.rope.width, self.value

    @property
    def limits(self) -> tuple[int | None, int | None]:
        """The most keys that a query sees, those that an indexer chose; there are no chunks."""
        return None if self.index is None else self.index.chosen, None

    def rows_kept(self, context: int) -> int:
        """All rows stay: what an indexer passes over it may choose for the next token."""
        return context

    def without_index(self) -> "Latent":
        """The indexer's own view: it scores every key, and chooses for the attention that looks after it."""
        return replace(self, index=None)


@dataclass(frozen=True)
class Mlp:
    """act(gate) * up, or act(up) where there is no gate; then down."""

    width: int
    act: str = "silu"
    gated: bool = True
    bias: bool = False

    experts: ClassVar[int] = 0
    chosen: ClassVar[int] = 0
    shared: ClassVar[int] = 0
    active: ClassVar[Fraction] = Fraction(1)


@dataclass(frozen=True)
class Moe:
    """Experts, of which each token visits the chosen few (arXiv 1701.06538); routing as in arXiv 2412.19437 or by softmax."""

    experts: int
    chosen: int
    width: int  # of one expert
    shared: int = 0  # width of the expert that every token visits
    affinity: str = "sigmoid"  # how logits become scores: "sigmoid", each for itself;  "softmax", over all experts
    groups: int = 1
    groups_chosen: int = 1
    group_best: int = 2  # a group is as good as the sum of this many of its best experts
    scale: float = 1.0
    normalised: bool = True
    bias: bool = False
    act: str = "silu"
    corrected: bool = True  # a correction is added to the scores that choose, not to those that count
    shared_gate: bool = False  # the shared expert's output is times the sigmoid of one more product (Qwen2-MoE)
    share_first: bool = False  # a share multiplies what its expert reads instead of what it makes (Llama 4)

    gated: ClassVar[bool] = True

    @property
    def active(self) -> Fraction:
        """How much of the experts' weights works for one token."""
        return Fraction(self.chosen, self.experts)


@dataclass(frozen=True)
class Layer:
    """One block: attention, feed-forward, and in a decoder that reads an encoder, cross attention.

    order: where the norms stand. "pre": before each part (arXiv 2002.04745);  "post": after each sum (arXiv 1706.03762);  "sandwich":
    before and after each part;  "parallel": both parts read one norm, and are added at once;  "parallel, two norms": each reads its own.
    """

    attn: Attention | Latent
    ffn: Mlp | Moe
    cross: Attention | None = None
    order: str = "pre"


@dataclass(frozen=True)
class Config:
    """A whole model. encoder is the stack that reads the source, where there is one."""

    vocab: int
    width: int
    layers: tuple[Layer, ...]
    tied: bool = False
    eps: float = 1e-5
    norm: str = "rms"  # "rms offset": its weight counts from 1 (Gemma);  "layer": subtracts the mean, has a bias;  "layer, no bias"
    positions: int | None = None  # tokens that learned positions reach, or sinusoids
    logit_scale: float = 1.0
    encoder: tuple[Layer, ...] | None = None
    embed_scale: float = 1.0  # of the rows of the embedding, rounded to their dtype
    embed_width: int | None = None  # of the embedding and the head, where not the model's
    embed_norm: bool = False
    types: int | None = None  # rows of token types
    offset: int = 0  # the row of the first position
    sinusoids: bool = False  # positions are computed, not learned
    final_norm: bool = True
    head: bool = True  # without one a model gives its last rows
    head_bias: bool = False
    transform: str | None = None  # the activation of one more product and norm before the head (BERT)
    pooler: bool = False  # of each text's first row, one more product and tanh (BERT); beside the rows, which a call gives
    logit_cap: float | None = None  # a soft limit of the logits
    prefix: bool = False  # the prompt's tokens see each other both ways; what follows is causal
    context: int | None = None  # tokens it was made for, where its files tell
    starts: int | None = None  # the id that a decoder of an encoder-decoder begins with
    stops: tuple[int, ...] = ()  # ids that end a text
    ignored: tuple[str, ...] = ()  # fields of config.json that were asked to be ignored

    @property
    def bidirectional(self) -> bool:
        """Whether every token sees every other: of a model without an encoder beside it, the first layer tells."""
        first = self.layers[0].attn
        return self.encoder is None and not first.causal
