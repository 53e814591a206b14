"""Readers of the fields that all of Gemma 4 share: the kinds of layers, the sizes of their heads, and how they turn."""

from typing import Any

from pellucid import config as c
from pellucid.families import gemma2
from pellucid.families.fields import Fields
from pellucid.families.rope import rope

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


def turn(hf: Fields, kind: str, head: int) -> c.Rope:
    """Return the rotary positions of a kind of layer whose heads are `head` wide."""
    every = hf.part("rope_parameters")
    own = None if every is None else every.part(kind)
    if own is None or own.get("rope_type", "default") != "proportional":
        return rope(hf, head, layer=kind)
    turning = int(own.number("partial_rotary_factor", 1.0) * head // 2)
    own.relate(0 < turning <= head // 2, "0 < partial_rotary_factor <= 1", turning=turning, pairs=head // 2)
    return c.Rope(head, own.number("rope_theta", above=1.0), scaling=c.Proportional(turning, own.number("factor", 1.0)))
