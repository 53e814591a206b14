"""The rotary settings of a config.json, in their old spelling and their new one."""

import math

from pellucid.config import Linear, Llama3, Rope, Yarn
from pellucid.families.fields import Fields


def rope(hf: Fields, width: int, interleaved: bool = False) -> Rope:
    """From `rope_parameters`, or from `rope_theta` and `rope_scaling` (whose kind is `rope_type`, or `type` in old files)."""
    hf.relate(width % 2 == 0, "rotary width % 2 == 0", width=width)
    found = hf.part("rope_parameters") or hf.part("rope_scaling")
    theta = hf.number("rope_theta", 10_000.0)
    if found is None:
        return Rope(width, theta, interleaved)
    theta = found.number("rope_theta", theta)
    make = found.choice("type" if "rope_type" not in found else "rope_type", KINDS, "default")
    found.read |= {"type", "rope_type"}
    return Rope(width, theta, interleaved, make(found, hf))


def plain(found: Fields, hf: Fields) -> None:
    found.read |= {"factor"}


def linear(found: Fields, hf: Fields) -> Linear:
    return Linear(found.number("factor"))


def llama3(found: Fields, hf: Fields) -> Llama3:
    low, high = found.number("low_freq_factor"), found.number("high_freq_factor")
    if high <= low:
        raise found.fault("high_freq_factor", high, f"> low_freq_factor = {low:g}")
    return Llama3(found.number("factor"), low, high, found.whole("original_max_position_embeddings"))


def yarn(found: Fields, hf: Fields) -> Yarn:
    context = hf.maybe("max_position_embeddings")
    original = found.whole("original_max_position_embeddings", context)
    factor = found.number("factor", None if context is None else context / original)
    alike, across = found.number("mscale", 0.0, -1), found.number("mscale_all_dim", 0.0, -1)
    amount = mscale(factor, alike) / mscale(factor, across) if alike and across else mscale(factor, 1.0)
    return Yarn(
        factor,
        original,
        found.number("beta_fast", 32.0),
        found.number("beta_slow", 1.0),
        found.number("attention_factor", amount),
        found.flag("truncate", True),
    )


def mscale(factor: float, amount: float) -> float:
    """How much YaRN sharpens attention: 1 + 0.1 · amount · ln(factor), arXiv 2309.00071 eq. 22."""
    return 0.1 * amount * math.log(factor) + 1.0 if factor > 1 else 1.0


def across_mscale(hf: Fields) -> float:
    """DeepSeek's second use of it: the softmax scale grows by the square of mscale(factor, mscale_all_dim)."""
    found = hf.part("rope_parameters") or hf.part("rope_scaling")
    if found is None or "mscale_all_dim" not in found or "factor" not in found:
        return 1.0
    return mscale(found.number("factor"), found.number("mscale_all_dim", above=-1)) ** 2


KINDS = {"default": plain, "linear": linear, "llama3": llama3, "yarn": yarn}
