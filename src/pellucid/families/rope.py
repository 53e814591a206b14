"""The rotary settings of a config.json, in the old and the new spelling."""

import math
from collections.abc import Mapping
from typing import Any

from pellucid.config import Dynamic, LinearScaling, Llama3, LongRope, Rope, Yarn
from pellucid.families.fields import Fields


def rope(
    hf: Fields,
    head: int,
    interleaved: bool = False,
    theta: float = 10_000.0,
    part: float | None = None,
    layer: str | None = None,
    base: str = "rope_theta",
    share: str = "partial_rotary_factor",
) -> Rope:
    """Return the rotary settings, from `rope_parameters`, or from `rope_theta` and `rope_scaling` with `rope_type` or `type`.

    theta: the default.  part: the default fraction of a head that rotates; None if the family has no such field.  base, share: the old
    fields of both.  layer: the kind of layer, where `rope_parameters` has one object for each kind.
    """
    theta = hf.number(base, theta, above=1.0)
    part = part if part is None else hf.number(share, part)
    scaling = settings(hf, layer)
    if scaling is not None:
        theta = scaling.number("rope_theta", theta, above=1.0)
        part = part if part is None else scaling.number("partial_rotary_factor", part)
    hf.relate(part is None or part <= 1.0, "partial_rotary_factor <= 1", partial_rotary_factor=part)
    width = head if part is None else int(head * part)
    hf.relate(width % 2 == 0 and width > 0, "rotary width % 2 == 0", width=width)
    return Rope(width, theta, interleaved, None if scaling is None else KINDS[kind(scaling)](scaling, hf, width))


def settings(hf: Fields, layer: str | None = None) -> Fields | None:
    """Return the object with the scaling's settings, None if there is none. `rope_scaling` is of full layers only."""
    both = "rope_parameters" in hf and "rope_scaling" in hf
    hf.relate(
        not both, "not (rope_parameters and rope_scaling)", **({k: hf.get(k) for k in ("rope_parameters", "rope_scaling")} if both else {})
    )
    current, old = hf.part("rope_parameters"), hf.part("rope_scaling")
    if layer is None:
        return current or old
    return current.part(layer) if current is not None else old if layer == "full_attention" else None


def kind(scaling: Fields) -> str:
    """Return the kind of scaling, `rope_type` or `type`; both must agree."""
    names = {name: name for name in KINDS}
    kinds = [str(scaling.choice(name, names)) for name in ("rope_type", "type") if name in scaling]
    scaling.relate(len(set(kinds)) < 2, "type == rope_type", rope_type=kinds[:1], type=kinds[1:])
    return kinds[0] if kinds else "default"


def plain(scaling: Fields, hf: Fields, width: int) -> None:
    scaling.read |= {"factor"}


def linear(scaling: Fields, hf: Fields, width: int) -> LinearScaling:
    return LinearScaling(scaling.number("factor"))


def llama3(scaling: Fields, hf: Fields, width: int) -> Llama3:
    low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
    scaling.relate(low <= high, "low_freq_factor <= high_freq_factor", low_freq_factor=low, high_freq_factor=high)
    return Llama3(scaling.number("factor"), low, high, scaling.integer("original_max_position_embeddings"))


def yarn(scaling: Fields, hf: Fields, width: int) -> Yarn:
    context = hf.maybe("max_position_embeddings")
    original = scaling.integer("original_max_position_embeddings", context)
    factor = scaling.number("factor", None if context is None else context / original)
    alike, across = scaling.number("mscale", 0.0, -1), scaling.number("mscale_all_dim", 0.0, -1)
    amount = mscale(factor, alike) / mscale(factor, across) if alike and across else mscale(factor, 1.0)
    fast, slow = scaling.number("beta_fast", 32.0), scaling.number("beta_slow", 1.0)
    scaling.relate(fast >= slow, "beta_fast >= beta_slow", beta_fast=fast, beta_slow=slow)
    return Yarn(factor, original, fast, slow, scaling.number("attention_factor", amount), scaling.flag("truncate", True))


def dynamic(scaling: Fields, hf: Fields, width: int) -> Dynamic:
    scaling.relate(width > 2, "rotary width > 2", width=width)
    scaling.read |= {"original_max_position_embeddings"}  # transformers counts from the longest context
    return Dynamic(scaling.number("factor"), hf.integer("max_position_embeddings"))


def longrope(scaling: Fields, hf: Fields, width: int) -> LongRope:
    context, outside = hf.integer("max_position_embeddings"), hf.maybe("original_max_position_embeddings")
    original = scaling.integer("original_max_position_embeddings", outside or context)
    scaling.relate(outside in (None, original), "original_max_position_embeddings alike", outside=outside, original=original)
    factor = scaling.number("factor", context / original)
    amount = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    short, long = scaling.numbers("short_factor"), scaling.numbers("long_factor")
    relation = "len(short_factor) == len(long_factor) == head_dim * partial_rotary_factor / 2"
    scaling.relate(len(short) == len(long) == width // 2, relation, short=len(short), long=len(long), half=width // 2)
    return LongRope(short, long, original, scaling.number("attention_factor", amount))


def mscale(factor: float, amount: float) -> float:
    """Return how much YaRN sharpens attention: 1 + 0.1 · amount · ln(factor), arXiv 2309.00071 eq. 22."""
    return 0.1 * amount * math.log(factor) + 1.0 if factor > 1 else 1.0


def fill(hf: Fields, table: Mapping[str, Any]) -> None:
    """Put the rope parameters that a type has of itself into a config.json that says none."""
    if "rope_parameters" not in hf and "rope_scaling" not in hf:
        hf.fixed("rope_theta", table["rope_theta"])  # another one would be lost in transformers
        hf.values = {**hf.values, "rope_parameters": table}


def across_mscale(hf: Fields) -> float:
    """Return DeepSeek's factor of the softmax scale: mscale(factor, mscale_all_dim) squared."""
    scaling = settings(hf)
    across = scaling.number("mscale_all_dim", 0.0, -1) if scaling and kind(scaling) != "default" else 0.0
    return mscale(scaling.number("factor"), across) ** 2 if scaling and across else 1.0


KINDS = {"default": plain, "linear": linear, "llama3": llama3, "yarn": yarn, "dynamic": dynamic, "longrope": longrope, "su": longrope}
