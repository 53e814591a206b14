"""Readers of the fields that all of Gemma 4 share: kinds of layers, sizes of their heads, how they turn, and whose keys they read."""

from typing import Any

from pellucid import config as c
from pellucid.families import gemma2
from pellucid.families.fields import Fields
from pellucid.families.rope import rope

EXPERTS = {"num_experts", "top_k_experts", "moe_intermediate_size", "expert_intermediate_size"}
TURNS: dict[str, Any] = {  # of files that say none
    gemma2.SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    gemma2.FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}


def kinds(hf: Fields) -> list[str]:
    """Return each layer's kind; the last one is full."""
    layers = gemma2.kinds(hf, 6)
    hf.relate("layer_types" not in hf or layers[-1] == gemma2.FULL, f"layer_types[-1] == {gemma2.FULL}", last=layers[-1])
    return [*layers[:-1], gemma2.FULL]


def sizes(hf: Fields, layers: list[str], keys: bool) -> list[tuple[int, int]]:
    """Return the width of a head and the number of key heads of each layer. keys: full layers have their own number."""
    head, groups = hf.integer("head_dim", 256), hf.integer("num_key_value_heads", 4)
    full = hf.integer("global_head_dim", 512), hf.integer("num_global_key_value_heads", groups) if keys else groups
    hf.read |= {"num_global_key_value_heads"}
    each = hf.part("per_layer_config")
    if each is None:
        return [full if kind == gemma2.FULL else (head, groups) for kind in layers]
    out = [(head, groups)] * len(layers)
    for name in each.values:  # "2", or "05" of a model of ten layers or more
        own = each.part(name)
        if own is None or not name.isdecimal() or int(name) >= len(layers):
            raise each.fault(name, each.values[name], f"0 ... {len(layers) - 1}: {{ ... }}")
        out[int(name)] = own.integer("head_dim", head), own.integer("num_key_value_heads", groups)
    return out


def turn(hf: Fields, kind: str, head: int, theta: float = 10_000.0) -> c.Rope:
    """Return the rotary positions of a kind of layer whose heads are `head` wide. theta: the base where the file says none."""
    every = hf.part("rope_parameters")
    own = None if every is None else every.part(kind)
    if own is None or own.get("rope_type", "default") != "proportional":
        return rope(hf, head, theta=theta, layer=kind)
    turning = int(own.number("partial_rotary_factor", 1.0) * head // 2)
    own.relate(0 < turning <= head // 2, "0 < partial_rotary_factor <= 1", turning=turning, pairs=head // 2)
    return c.Rope(head, own.number("rope_theta", above=1.0), scaling=c.Proportional(turning, own.number("factor", 1.0)))


def keys(hf: Fields, layers: list[str]) -> list[str]:
    """Return how each layer has its keys: the last `num_kv_shared_layers` read those of the last layer of their kind before them."""
    count = hf.integer("num_kv_shared_layers", 0, low=0)
    if not count:
        return ["own"] * len(layers)
    own = layers[: max(len(layers) - count, 0)]
    hf.relate({*own} == {*layers}, "set(layer_types[:-num_kv_shared_layers]) == set(layer_types)", num_kv_shared_layers=count, before=own)
    last = {len(own) - 1 - own[::-1].index(kind) for kind in own}
    return ["kept" if i in last else "own" if i < len(own) else "shared" for i in range(len(layers))]


def layer_input(hf: Fields, act: str) -> c.LayerInput | None:
    """Return what every block reads beside its rows; None where its width is 0."""
    width = hf.integer("hidden_size_per_layer_input", 256, low=0)
    rows, vocab = hf.integer("vocab_size_per_layer_input", 262_144), hf.integer("vocab_size")
    if not width:
        return None
    hf.relate(rows >= vocab, "vocab_size_per_layer_input >= vocab_size", vocab_size_per_layer_input=rows, vocab_size=vocab)
    return c.LayerInput(rows, width, act)


def feed_forward(hf: Fields) -> c.Mlp | c.Moe:
    """Return the feed-forward part: dense, or experts beside a dense part that every token visits."""
    mlp = gemma2.mlp(hf)
    if not hf.flag("enable_moe_block", False):
        hf.read |= EXPERTS
        return mlp
    count, chosen = hf.integer("num_experts"), hf.integer("top_k_experts")
    hf.relate(chosen <= count, "top_k_experts <= num_experts", top_k_experts=chosen, num_experts=count)
    width, sizes = hf.integer("moe_intermediate_size"), {"act": mlp.act, "norms": True, "own_scale": True}
    hf.fixed("expert_intermediate_size", width)  # an older name, which transformers does not read
    return c.Moe(count, chosen, width, mlp.width, "softmax", corrected=False, least=0.0, **sizes)  # type: ignore[arg-type]
