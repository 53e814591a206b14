"""What an exhibit needs of a model: fields of its Config, so that one definition decides whether a model fits, and says why it does not."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from pellucid.api.switching import written
from pellucid.config import Attention, Config

EVERY, FIRST, LAST = "layers.*", "layers.0", "layers.-1"


@dataclass(frozen=True)
class Need:
    """Fields of a Config and what they may hold. what: the name of its sentence, `need.WHAT`.  paths: of the fields; `*` is every block.

    allows(*values): True if a model fits; a part that lacks a field has None there.  some: one block that fits is enough.
    numbers: of the sentence.
    """

    what: str
    paths: str
    allows: Callable[..., bool]
    some: bool = False
    numbers: tuple[tuple[str, int], ...] = ()

    def unmet(self, cfg: Config) -> str:
        """Return the first fields whose values are not allowed, "layers.0.attn.causal=off". "" if the model fits."""
        places = zip(*(values(cfg, path) for path in self.paths.split()), strict=True)
        wrong = [place for place in places if not self.allows(*(value for _, value in place))]
        if not wrong or (self.some and len(wrong) < len(cfg.layers)):
            return ""
        names = self.paths.split() if self.some else [path for path, _ in wrong[0]]
        return ", ".join(f"{name}={shown(value)}" for name, (_, value) in zip(names, wrong[0], strict=True))


def values(spec: Any, path: str, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the fields of a spec at a path, each with its own path and its value. before: the path of the spec."""
    name, _, rest = path.partition(".")
    if isinstance(spec, tuple):
        chosen = range(len(spec)) if name == "*" else [range(len(spec))[int(name)]]
        inner = [(str(i), spec[i]) for i in chosen]
    else:
        inner = [(name, getattr(spec, name, None))]
    for own, value in inner:
        if rest:
            yield from values(value, rest, f"{before}{own}.")
        else:
            yield f"{before}{own}", value


def shown(value: Any) -> str:
    """Write a field's value: as a switch does, a spec by its name, blocks by their number."""
    if isinstance(value, tuple):
        return f"{len(value)} × {type(value[0]).__name__}"
    return type(value).__name__ if is_dataclass(value) else written(value)


def absent(value: Any) -> bool:
    """True for None, False, "" and 0."""
    return not value


def by_heads(kind: str) -> bool:
    """True for the name of attention whose heads have keys and values, each its own or several one."""
    return kind in ("MHA", "GQA", "MQA")


def unmet(needs: Sequence[Need], cfg: Config) -> tuple[Need, str] | None:
    """Return the first need that a model does not meet, with the fields that it has. None if the model fits."""
    return next(((need, has) for need in needs if (has := need.unmet(cfg))), None)


NO_ENCODER = Need("no_encoder", "encoder", absent)
READS_A_SOURCE = Need("encoder", "encoder", bool)
DECODER = (NO_ENCODER, Need("head", "head", bool))
ONE_WAY = (*DECODER, Need("one_way", "bidirectional", absent))
GENERATOR = (
    *ONE_WAY,
    Need("attends", f"{EVERY}.attn.heads", bool),
    Need("ffn", f"{EVERY}.ffn.width", bool),
    Need("alone", f"{EVERY}.second", absent),
)
"""Of a model that goes on with a text by itself, whose blocks all attend, alone, and have a feed-forward part."""
NO_PREFIX = Need("no_prefix", "prefix", absent)
ROOM = 128  # tokens of a text that states facts and asks for them
READER = (*GENERATOR, NO_PREFIX, Need("positions", "positions", lambda n: n is None or n >= ROOM, numbers=(("least", ROOM),)))
"""Of a generator with positions for a text that states facts and asks for them, whose rows stay when the text goes on."""
UNPADDED = (*ONE_WAY, NO_PREFIX)
"""Of a causal decoder, whose prompts a batch may pad on the left."""
CAUSAL_HEADS = (*DECODER, NO_PREFIX, Need("by_heads", f"{EVERY}.attn.kind", by_heads), Need("causal", f"{EVERY}.attn.causal", bool))
"""Of a decoder whose every block has causal attention of the kind whose hidden scores can be set."""
REUSED = (
    *CAUSAL_HEADS,
    Need("alone", f"{EVERY}.second", absent),
    Need("all_keys", f"{LAST}.attn.window", absent),
    Need("all_keys", f"{LAST}.attn.chunk", absent),
)
"""Of a decoder that keeps keys and values and nothing else of a token, whose last block reads those of every earlier one."""
DENSE = Need("dense", f"{EVERY}.ffn.experts", absent)
PLAIN_SUM = Need("pre", f"{FIRST}.order", lambda order: order == "pre")
FIRST_CAUSAL = (*DECODER, Need("causal", f"{FIRST}.attn.causal", bool))
NO_CHUNK = Need("all_keys", f"{FIRST}.attn.chunk", absent)
PAST = (*FIRST_CAUSAL, NO_PREFIX, Need("attends", f"{FIRST}.attn.heads", bool), NO_CHUNK)
"""Of a causal decoder whose first block sees all that came before, or a sliding window of it."""
REACHING = (
    *FIRST_CAUSAL,
    Need("by_heads", f"{FIRST}.attn.kind", by_heads),
    Need("all_keys", f"{FIRST}.attn.window", absent),
    NO_CHUNK,
)
"""Of a decoder whose first block has attention without latents and sees all rows before."""
PRODUCTS = ("rope", "qk_norm", "qk_rms", "temper", "cap", "buckets", "alibi", "distances")  # what changes scores beside two projections
PAIRED = (*PAST, Need("alone", f"{FIRST}.second", absent))
"""Of a causal decoder whose first block attends, and mixes tokens by nothing else."""
BILINEAR = (
    *FIRST_CAUSAL,
    NO_PREFIX,
    Need("by_heads", f"{FIRST}.attn.kind", by_heads),
    PLAIN_SUM,
    Need("alone", f"{FIRST}.second", absent),
    *(Need("bilinear", f"{FIRST}.attn.{name}", absent) for name in PRODUCTS),
)
"""Of a decoder whose scores in block 0 are products of two projections and nothing else, and whose sum follows at once."""
ROTARY = (
    *DECODER,
    Need("no_positions", "positions", absent),
    Need("by_heads", f"{EVERY}.attn.kind", by_heads),
    Need("rotary", f"{EVERY}.attn.rope", bool),
    Need("no_length", f"{EVERY}.attn.rope.by_length", absent),
    Need("no_qk_norm", f"{EVERY}.attn.qk_norm", absent),
)
"""Of a decoder whose every block has rotary positions in attention of heads, with no other positions or scalings by length."""
LATENT = (*GENERATOR, Need("latent", f"{EVERY}.attn.kind", lambda kind: kind == "MLA"))
SHARED = (*GENERATOR, Need("several_keys", f"{EVERY}.attn.kv_heads", lambda groups: (groups or 1) > 1))
ROUTED = (
    *GENERATOR,
    Need("experts", f"{EVERY}.ffn.experts", bool, some=True),
    Need("corrected", f"{EVERY}.ffn.experts {EVERY}.ffn.corrected", lambda experts, on: not experts or on),
    Need("scores", f"{EVERY}.ffn.experts {EVERY}.ffn.corrects_logits", lambda experts, on: not (experts and on)),
    Need("normalised", f"{EVERY}.ffn.experts {EVERY}.ffn.normalised", lambda experts, on: not experts or on),
    Need("sigmoid", f"{EVERY}.ffn.experts {EVERY}.ffn.affinity", lambda experts, kind: not experts or kind == "sigmoid"),
    Need("pre", f"{EVERY}.ffn.experts {EVERY}.order", lambda experts, order: not experts or order == "pre"),
)
"""Of a generator whose experts are chosen with a correction, and whose shares are divided by their sum."""
UNPLACED = (Need("no_latent", f"{EVERY}.attn.kind", lambda kind: kind != "MLA"), Need("alone", f"{EVERY}.second", absent))
"""Of a model from which `shuffle.without_positions` takes all that says where a word stands.

MLA's rotary key is a part of its matrices, and a state beside attention is made in order.
"""
TENSORED = (*GENERATOR, Need("by_heads", f"{FIRST}.attn.kind", by_heads), Need("dense", f"{FIRST}.ffn.experts", absent), PLAIN_SUM)
"""Of a generator whose block 0 has the tensors that the exhibit `code` offers."""
ONE_NUMBER = Need("one_number", f"{EVERY}.ffn.act", lambda act: act != "clamped")
OWN_LAST = Need("own_last", f"{LAST}.attn.buckets", absent)
FREE = {"heads", "kv_heads", "width", "bias", "out_bias", "scale", "causal"}  # of an attention that torch's can stand for


def usual(name: str, value: Any) -> Need:
    """Return the need that a field of block 0's attention has its usual value."""
    return Need("plain", f"{FIRST}.attn.{name}", lambda own: own == value)


TWIN = (
    Need("one_key_a_head", f"{FIRST}.attn.kind", lambda kind: kind == "MHA"),
    Need("full_width", f"{FIRST}.attn.heads {FIRST}.attn.width width", lambda heads, own, width: heads * own == width),
    *(usual(f.name, f.default) for f in fields(Attention) if f.name not in FREE),
    Need("biases", f"{FIRST}.attn.bias {FIRST}.attn.out_bias", lambda bias, out: bias == out),
    Need("usual_scale", f"{FIRST}.attn.width {FIRST}.attn.scale", lambda width, scale: scale in (None, width**-0.5)),
)
"""Of a model whose block 0 has plain softmax attention with a key for each head, as the library's is."""
