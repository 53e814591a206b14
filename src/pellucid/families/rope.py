"""The rotary settings of a config.json, in their old spelling and their new one."""

import math

from pellucid.config import Linear, Llama3, Rope, Yarn
from pellucid.families.fields import Fields


def rope(hf: Fields, width: int, interleaved: bool = False, theta: float = 10_000.0) -> Rope:
    """From `rope_parameters`, or from `rope_theta` and `rope_scaling` (whose kind is `rope_type`, or `type` in old files).

    theta: where neither tells it.
    """
    hf.relate(width % 2 == 0, "rotary width % 2 == 0", width=width)
    theta = hf.number("rope_theta", theta, above=1.0)
    found = settings(hf)
    if found is None:
        return Rope(width, theta, interleaved)
    theta = found.number("rope_theta", theta, above=1.0)
    return Rope(width, theta, interleaved, KINDS[kind(found)](found, hf))


def settings(hf: Fields) -> Fields | None:
    """The object that holds them, whatever it is called."""
    both = "rope_parameters" in hf and "rope_scaling" in hf
    hf.relate(
        not both, "not (rope_parameters and rope_scaling)", **({k: hf.get(k) for k in ("rope_parameters", "rope_scaling")} if both else {})
    )
    return hf.part("rope_parameters") or hf.part("rope_scaling")


def kind(found: Fields) -> str:
    """`rope_type`, or `type`; both where they agree."""
    names = {name: name for name in KINDS}
    told = [str(found.choice(name, names)) for name in ("rope_type", "type") if name in found]
    found.relate(len(set(told)) < 2, "type == rope_type", rope_type=told[:1], type=told[1:])
    return told[0] if told else "default"


def plain(found: Fields, hf: Fields) -> None:
    found.read |= {"factor"}


def linear(found: Fields, hf: Fields) -> Linear:
    return Linear(found.number("factor"))


def llama3(found: Fields, hf: Fields) -> Llama3:
    low, high = found.number("low_freq_factor"), found.number("high_freq_factor")
    found.relate(low < high, "low_freq_factor < high_freq_factor", low_freq_factor=low, high_freq_factor=high)
    return Llama3(found.number("factor"), low, high, found.whole("original_max_position_embeddings"))


def yarn(found: Fields, hf: Fields) -> Yarn:
    context = hf.maybe("max_position_embeddings")
    original = found.whole("original_max_position_embeddings", context)
    factor = found.number("factor", None if context is None else context / original)
    alike, across = found.number("mscale", 0.0, -1), found.number("mscale_all_dim", 0.0, -1)
    amount = mscale(factor, alike) / mscale(factor, across) if alike and across else mscale(factor, 1.0)
    fast, slow = found.number("beta_fast", 32.0), found.number("beta_slow", 1.0)
    found.relate(fast >= slow, "beta_fast >= beta_slow", beta_fast=fast, beta_slow=slow)
    return Yarn(factor, original, fast, slow, found.number("attention_factor", amount), found.flag("truncate", True))


def mscale(factor: float, amount: float) -> float:
    """How much YaRN sharpens attention: 1 + 0.1 · amount · ln(factor), arXiv 2309.00071 eq. 22."""
    return 0.1 * amount * math.log(factor) + 1.0 if factor > 1 else 1.0


def across_mscale(hf: Fields) -> float:
    """DeepSeek's second use of it: the softmax scale grows by the square of mscale(factor, mscale_all_dim)."""
    found = settings(hf)
    across = found.number("mscale_all_dim", 0.0, -1) if found and kind(found) != "default" else 0.0
    return mscale(found.number("factor"), across) ** 2 if found and across else 1.0


KINDS = {"default": plain, "linear": linear, "llama3": llama3, "yarn": yarn}
