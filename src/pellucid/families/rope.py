"""The rotary settings of a config.json, in their old spelling and their new one."""

import math

from pellucid.config import Dynamic, Linear, Llama3, LongRope, Rope, Yarn
from pellucid.families.fields import Fields


def rope(
    hf: Fields,
    head: int,
    interleaved: bool = False,
    theta: float = 10_000.0,
    part: float | None = None,
    layer: str | None = None,
    base: str = "rope_theta",
) -> Rope:
    """From `rope_parameters`, or from `rope_theta` and `rope_scaling` (whose kind is `rope_type`, or `type` in old files).

    theta: where neither tells it.  part: of a head that turns, where the file is silent; None: the family knows of no part but the whole.
    layer: the kind of layer whose own settings are meant, where `rope_parameters` holds one object for each.  base: the old field of theta.
    """
    theta = hf.number(base, theta, above=1.0)
    part = part if part is None else hf.number("partial_rotary_factor", part)
    found = settings(hf, layer)
    if found is not None:
        theta = found.number("rope_theta", theta, above=1.0)
        part = part if part is None else found.number("partial_rotary_factor", part)
    hf.relate(part is None or part <= 1.0, "partial_rotary_factor <= 1", partial_rotary_factor=part)
    width = head if part is None else int(head * part)
    hf.relate(width % 2 == 0 and width > 0, "rotary width % 2 == 0", width=width)
    return Rope(width, theta, interleaved, None if found is None else KINDS[kind(found)](found, hf, width))


def settings(hf: Fields, layer: str | None = None) -> Fields | None:
    """The object that holds them, whatever it is called; of several kinds of layers, `rope_scaling` speaks of the full ones alone."""
    both = "rope_parameters" in hf and "rope_scaling" in hf
    hf.relate(
        not both, "not (rope_parameters and rope_scaling)", **({k: hf.get(k) for k in ("rope_parameters", "rope_scaling")} if both else {})
    )
    found, old = hf.part("rope_parameters"), hf.part("rope_scaling")
    if layer is None:
        return found or old
    return found.part(layer) if found is not None else old if layer == "full_attention" else None


def kind(found: Fields) -> str:
    """`rope_type`, or `type`; both where they agree."""
    names = {name: name for name in KINDS}
    told = [str(found.choice(name, names)) for name in ("rope_type", "type") if name in found]
    found.relate(len(set(told)) < 2, "type == rope_type", rope_type=told[:1], type=told[1:])
    return told[0] if told else "default"


def plain(found: Fields, hf: Fields, width: int) -> None:
    found.read |= {"factor"}


def linear(found: Fields, hf: Fields, width: int) -> Linear:
    return Linear(found.number("factor"))


def llama3(found: Fields, hf: Fields, width: int) -> Llama3:
    low, high = found.number("low_freq_factor"), found.number("high_freq_factor")
    found.relate(low <= high, "low_freq_factor <= high_freq_factor", low_freq_factor=low, high_freq_factor=high)
    return Llama3(found.number("factor"), low, high, found.integer("original_max_position_embeddings"))


def yarn(found: Fields, hf: Fields, width: int) -> Yarn:
    context = hf.maybe("max_position_embeddings")
    original = found.integer("original_max_position_embeddings", context)
    factor = found.number("factor", None if context is None else context / original)
    alike, across = found.number("mscale", 0.0, -1), found.number("mscale_all_dim", 0.0, -1)
    amount = mscale(factor, alike) / mscale(factor, across) if alike and across else mscale(factor, 1.0)
    fast, slow = found.number("beta_fast", 32.0), found.number("beta_slow", 1.0)
    found.relate(fast >= slow, "beta_fast >= beta_slow", beta_fast=fast, beta_slow=slow)
    return Yarn(factor, original, fast, slow, found.number("attention_factor", amount), found.flag("truncate", True))


def dynamic(found: Fields, hf: Fields, width: int) -> Dynamic:
    found.relate(width > 2, "rotary width > 2", width=width)
    found.read |= {"original_max_position_embeddings"}  # transformers counts from the longest context
    return Dynamic(found.number("factor"), hf.integer("max_position_embeddings"))


def longrope(found: Fields, hf: Fields, width: int) -> LongRope:
    context, outside = hf.integer("max_position_embeddings"), hf.maybe("original_max_position_embeddings")
    original = found.integer("original_max_position_embeddings", outside or context)
    found.relate(outside in (None, original), "original_max_position_embeddings alike", outside=outside, original=original)
    factor = found.number("factor", context / original)
    amount = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    short, long = found.numbers("short_factor"), found.numbers("long_factor")
    relation = "len(short_factor) == len(long_factor) == head_dim * partial_rotary_factor / 2"
    found.relate(len(short) == len(long) == width // 2, relation, short=len(short), long=len(long), half=width // 2)
    return LongRope(short, long, original, found.number("attention_factor", amount))


def mscale(factor: float, amount: float) -> float:
    """How much YaRN sharpens attention: 1 + 0.1 · amount · ln(factor), arXiv 2309.00071 eq. 22."""
    return 0.1 * amount * math.log(factor) + 1.0 if factor > 1 else 1.0


def across_mscale(hf: Fields) -> float:
    """DeepSeek's second use of it: the softmax scale grows by the square of mscale(factor, mscale_all_dim)."""
    found = settings(hf)
    across = found.number("mscale_all_dim", 0.0, -1) if found and kind(found) != "default" else 0.0
    return mscale(found.number("factor"), across) ** 2 if found and across else 1.0


KINDS = {"default": plain, "linear": linear, "llama3": llama3, "yarn": yarn, "dynamic": dynamic, "longrope": longrope, "su": longrope}
