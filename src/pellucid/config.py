"""Every way the family varies, on one page, with rotary positions in rope_config.py, and what stands in attention's place in
state_config.py. No torch here: a config is plain data, and prints as what it is.

`None` means that the part is absent. `Config.layers` is a tuple of layers, so that dense-then-experts, sliding-then-full and hybrids
are data. A variant is another part, chosen once, in a constructor. A spec answers for itself: its window, its rows in the cache, its kind.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Self, get_args

from pellucid.attention_spec import Alibi as Alibi
from pellucid.attention_spec import AttentionSpec as AttentionSpec
from pellucid.attention_spec import Buckets as Buckets
from pellucid.attention_spec import Products as Products
from pellucid.rope_config import Dynamic as Dynamic
from pellucid.rope_config import LinearScaling as LinearScaling
from pellucid.rope_config import Llama3 as Llama3
from pellucid.rope_config import LongRope as LongRope
from pellucid.rope_config import Proportional as Proportional
from pellucid.rope_config import Rope as Rope
from pellucid.rope_config import Yarn as Yarn
from pellucid.state_config import GatedDelta as GatedDelta
from pellucid.state_config import Mamba1 as Mamba1
from pellucid.state_config import Mamba2 as Mamba2
from pellucid.state_config import ShortConv as ShortConv


@dataclass(frozen=True)
class Temper:
    """Queries that grow with their position p, times 1 + scale · ln(1 + ⌊(p + first) / floor⌋), arXiv 2501.19399."""

    floor: int
    scale: float
    first: int = 1  # the number of the first position: 1 in Llama 4, 0 in Ministral 3


@dataclass(frozen=True)
class Attention(AttentionSpec):
    """Attention: MHA if kv_heads equals heads, MQA if it is 1, GQA between (arXiv 1706.03762, 1911.02150, 2305.13245)."""

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
    fill: float | None = None  # the score of a key that the mask hides, if it runs in the same forward or is stored; None: −∞
    gated: bool = False  # what each head makes is times the sigmoid of one more product, number by number
    gated_heads: bool = False  # what each head makes is times the sigmoid of its own number, of one more product (LFM3)
    qk_joint: bool = False  # qk_norm is by the root mean square of all heads of a row together (arXiv 2501.00656)
    qk_own: bool = False  # qk_norm is a LayerNorm of each head, with weights of its own (StableLM 2 12B, Command R+); never with qk_joint
    norm_turned: bool = False  # qk_norm stands behind rope (Hunyuan)
    v_rms: bool = False  # values over their root mean square, without a weight (Gemma 4)
    v_from_k: bool = False  # values are the keys before norm and rope, and have no product of their own (Gemma 4)
    clip: float | None = None  # the most that a number of a query, key or value may be, either way (OLMo, MPT)
    key_factor: float = 1.0  # of every key (Falcon-H1)
    keys: str = "own"  # "kept": its keys and values are read by later layers too;  "shared": it has none, and reads those of the last layer
    # of its window that kept its own (Gemma 4 E2B)

    stored: ClassVar[tuple[str, ...]] = "G·K", "G·W"

    @property
    def kind(self) -> str:
        """Return the name of the kind: MHA, MQA or GQA."""
        return "MHA" if self.kv_heads == self.heads else "MQA" if self.kv_heads == 1 else "GQA"

    @property
    def head_width(self) -> int | str:
        """Return a head's width, as it is displayed."""
        return self.width

    def on_rank(self, row: int, groups: int) -> int:
        return row * groups // self.kv_heads

    def products(self, rows: int, seen: int, source: int) -> Iterator[Products]:
        for over in ((rows, seen), (rows, source), (source, source)):
            yield "T·S·H·(K + K)", (*over, self.heads, (self.width, self.width))

    def as_heads(self, groups: int) -> "Attention":
        return replace(self, kv_heads=groups)

    def as_latent(self, rank: int | None) -> "Latent | None":
        """Return MLA without windows, caps and sinks, whose queries come straight from x."""
        if not self.causal or self.buckets or self.alibi or self.distances:
            return None
        own, rotary = latent_widths(self.width)
        rope = Rope(rotary, self.rope.theta if self.rope else 10_000.0)
        return Latent(self.heads, None, rank or own, self.width, self.width, rope, self.bias)


def latent_widths(width: int) -> tuple[int, int]:
    """Return the widths of latent and rotary key for heads of this width: 4 times and half of it, as in arXiv 2405.04434, 2.1.

    Heads of 128 have 512 + 64, as in DeepSeek-V2 and V3; so MLA stores as much as 2.25 groups of keys and values at any width of a head.
    """
    return 4 * width, max(2, width // 4 * 2)


@dataclass(frozen=True)
class Index:
    """Small heads that score every key before attention runs; a query then sees the best `chosen` of them (arXiv 2512.02556)."""

    heads: int
    width: int  # of one head
    chosen: int
    eps: float = 1e-6
    side_by_side: bool = False  # the pairs of channels that turn (GLM-5), not half a width apart

    stored: ClassVar[tuple[str, ...]] = ("K",)


@dataclass(frozen=True)
class Latent(AttentionSpec):
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
    grows: Temper | None = None  # queries, as Attention.temper says (Mistral 4)
    form: str | None = None  # "expanded" or "absorbed", two ways to the same numbers; None: in each step the one with fewer products

    kind: ClassVar[str] = "MLA"
    kv_heads: ClassVar[None] = None  # what is stored serves all heads, so ranks cannot share it out
    stored: ClassVar[tuple[str, ...]] = "C", "R"

    def read_by_heads(self, width: int) -> tuple[int, ...]:
        return self.q_rank or width, self.kv_rank, self.rope.width

    @property
    def head_width(self) -> int | str:
        """Return the widths of a key's content and rotary part, as they are displayed."""
        return f"{self.key}+{self.rope.width}"

    @property
    def uncompressed(self) -> tuple[int, int, int]:
        return self.key, self.rope.width, self.value

    @property
    def limits(self) -> tuple[int | None, int | None]:
        """Return the most keys that a query sees, those that an indexer chose; there are no chunks."""
        return None if self.index is None else self.index.chosen, None

    def without_index(self) -> Self:
        """Return this spec without its indexer: the mask of the indexer itself, which scores every key."""
        return replace(self, index=None)

    def products(self, rows: int, seen: int, source: int) -> Iterator[Products]:
        if self.index is not None:
            yield "T·S·H·(K + 1)", (rows, seen, self.index.heads, (self.index.width, 1))
        h, c, k, r, w = self.heads, self.kv_rank, self.key, self.rope.width, self.value
        yield "H·(S·C·(K + W) + T·S·(K + R + W))", (h, (seen * c * (k + w), rows * seen * (k + r + w)))
        yield "H·(T·C·(K + W) + T·S·(C + R + C))", (h, (rows * c * (k + w), rows * seen * (c + r + c)))

    def as_heads(self, groups: int) -> Attention:
        """Return heads whose keys and values have the width of the content part, a part of which has rotary positions."""
        return Attention(self.heads, groups, self.key, replace(self.rope, width=min(self.rope.width, self.key)), bias=self.bias)

    def as_latent(self, rank: int | None) -> "Latent":
        return replace(self, kv_rank=rank or latent_widths(self.key)[0])


AnyAttention = Attention | Latent | ShortConv | GatedDelta | Mamba1 | Mamba2  # every kind of attention, and what stands in its place
MIXERS = tuple(dict.fromkeys(kind.part for kind in get_args(AnyAttention)))  # the names that these have in a block


@dataclass(frozen=True)
class Mlp:
    """A feed-forward part: act(gate) * up, or act(up) without a gate; then down. "xielu", never with a gate, learns two numbers."""

    width: int
    act: str = "silu"
    gated: bool = True
    bias: bool = False
    gate_factor: float = 1.0  # of the gate, before its activation (Falcon-H1)
    down_bias: bool = False  # of the last product, where the others have none (GTE)

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
    corrects_logits: bool = False  # it is added to the logits, not to what they become (Kolibri 1)
    shared_gate: bool = False  # the shared expert's output is times the sigmoid of one more product (Qwen2-MoE)
    least: float = 1e-20  # added to the sum that normalises shares
    share_first: bool = False  # a share multiplies what its expert reads instead of what it makes (Llama 4)
    gated: bool = True  # as Mlp.gated, of each expert and of the shared one
    near: float | None = None  # SparseMixer: a share is a softmax over its expert and those this near it, without better choices
    norms: bool = False  # router, experts and shared part norm what they read, each for itself, the last two also what they made (Gemma 4)
    own_scale: bool = False  # a share is times a stored number of its expert (Gemma 4)

    @property
    def active(self) -> Fraction:
        """Return the share of the experts' weights that one token uses."""
        return Fraction(self.chosen, self.experts)


@dataclass(frozen=True)
class Without:
    """No feed-forward part: a block is its attention, or what stands in its place, alone (Mamba-2's own models)."""

    width: ClassVar[int] = 0
    act: ClassVar[str] = ""
    gated: ClassVar[bool] = False
    bias: ClassVar[bool] = False
    experts: ClassVar[int] = 0
    chosen: ClassVar[int] = 0
    shared: ClassVar[int] = 0
    active: ClassVar[Fraction] = Fraction(1)


AnyFfn = Mlp | Moe | Without


@dataclass(frozen=True)
class LayerInput:
    """What a block reads of a token beside its rows: a row of its own table, and a product of what enters the first block (Gemma 4 E2B).

    It is multiplied with an activated product of the rows, and a product of that joins them, behind a norm.
    """

    rows: int  # of the table
    width: int
    act: str = "gelu_tanh"


@dataclass(frozen=True)
class Layer:
    """One block: attention, feed-forward, and in a decoder that reads an encoder, cross attention.

    order: where the norms stand. "pre": before each part (arXiv 2002.04745);  "post": after each sum (arXiv 1706.03762);  "sandwich":
    before and after each part;  "parallel": both parts read one norm, and are added at once;  "parallel, two norms": each reads its own;
    "after": after each part, of what it made (OLMo 2);  "half": before the feed-forward part alone (ModernBERT's first block, whose rows
    come from a norm);  "bare": as "pre", without the sums;  "sandwich, scaled": as "sandwich", and what leaves is times one stored number
    (Gemma 4);  "sandwich, scaled, rows": as that, but the feed-forward part reads the rows, not a norm of them (Gemma 4 26B-A4B).
    gain: of what each part made, before it is added (Granite), and behind the norm of a sandwich.
    ranks: matrices that are products of two thin ones, and how thin: ("ffn.up", 32).
    second: what mixes the same normed rows beside attention, so that both are added (Falcon-H1).  factors: of what a part makes,
    ("mamba", 0.5), or reads, ("mamba.in", 2.0).  input: what it reads beside its rows; of a "sandwich, scaled" alone.
    """

    attn: AnyAttention
    ffn: AnyFfn
    cross: Attention | None = None
    order: str = "pre"
    gain: float = 1.0
    ranks: tuple[tuple[str, int], ...] = ()
    second: AnyAttention | None = None
    factors: tuple[tuple[str, float], ...] = ()
    input: LayerInput | None = None

    @property
    def mixers(self) -> tuple[AnyAttention, ...]:
        """Return what mixes the block's rows: one spec, or two side by side."""
        return (self.attn,) if self.second is None else (self.attn, self.second)

    @property
    def state(self) -> int:
        """Return the numbers of the states that a text has in this block."""
        return sum(one.state for one in self.mixers)


@dataclass(frozen=True)
class Config:
    """A whole model. encoder: the stack that reads the source, None for a model without one."""

    vocab: int
    width: int
    layers: tuple[Layer, ...]
    tied: bool = False
    eps: float = 1e-5
    norm: str = "rms"  # "rms offset": weight counts from 1 (Gemma); "rms, no weight", "layer", "layer, no bias", "layer, no weight", "none"
    positions: int | None = None  # tokens that learned positions reach, or sinusoids
    logit_scale: float = 1.0  # of the rows that the head reads (T5)
    logit_factor: float = 1.0  # of the logits (Granite, Command R)
    encoder: tuple[Layer, ...] | None = None
    embed_scale: float = 1.0  # of the rows of the embedding, rounded to their dtype
    embed_width: int | None = None  # of the embedding and the head, where not the model's
    narrow_entry: bool = False  # positions, types and norm have the embedding's width, and a biased product leads to the model's (ALBERT)
    embed_norm: bool = False
    norm_first: bool = False  # the decoder's norm reads the table's own rows, not scaled and without positions (Blenderbot Small)
    types: int | None = None  # rows of token types
    tasks: int | None = None  # rows of task types, the first of which every token gets (ERNIE)
    offset: int = 0  # the row of the first position
    sinusoids: bool = False  # positions are computed, not learned
    last_wave: bool = False  # the longest of the sinusoids has 20,000π tokens itself (fairseq), not the one after it
    final_norm: bool = True
    head: bool = True  # without one a model gives its last rows
    head_bias: bool = False
    transform: str | None = None  # the activation of one more product and norm before the head (BERT)
    transform_bias: bool = True  # of that product
    pooler: bool = False  # of each text's first row, one more product and tanh (BERT); beside the rows, which a call gives
    logit_cap: float | None = None  # a soft limit of the logits
    prefix: bool = False  # the prompt's tokens see each other both ways; what follows is causal
    context: int | None = None  # tokens it was made for, None if its files do not say
    starts: int | None = None  # the id that a decoder of an encoder-decoder begins with
    stops: tuple[int, ...] = ()  # ids that end a text
    shares: tuple[int, ...] = ()  # of each layer the first one with its weights; (): each has its own (ALBERT has one for all)
    ignored: tuple[str, ...] = ()  # fields of config.json that the user had ignored

    @property
    def heads(self) -> int:
        """Return the query heads of a layer, the most that one has; 0 if none attends."""
        return max(one.attn.heads for one in self.layers)

    @property
    def whole_prompts(self) -> bool:
        """True if a prompt's rows depend on later ones, so that all of it must run at once.

        By a prefix, a mask that hides nothing, or a layer behind the first that is not causal, as a variant's may be.
        """
        sees_later = not self.bidirectional and any(not layer.attn.causal for layer in self.layers)
        return self.prefix or sees_later or any(layer.attn.fill is not None for layer in self.layers)

    @property
    def bidirectional(self) -> bool:
        """True if every token sees every other, which the first layer of a model without a separate encoder decides."""
        first = self.layers[0].attn
        return self.encoder is None and not first.causal
