"""The meaning of a formula's signs: every name in it that is no operand and no weight, each with the numbers of the record.

`mid / rms(mid) · W_ffn_norm`: "rms(x): the root of the mean of x² over its row, plus 1e-06 under the root". The sentences are messages; a
note is the key of one and its values.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from pellucid.documents.formula import BROKEN, formula
from pellucid.documents.number import number
from pellucid.messages import say
from pellucid.ops.kinds import plain
from pellucid.watching.records import Seen

Note = tuple[str, dict[str, str]]  # what follows "formula." in a word's key, and the word's values
SHOWN = 8  # numbers of a list that are written out


def first_of(numbers: list[float]) -> str:
    """Write the first numbers of a list, and the count of all if there are more."""
    return ", ".join(map(plain, numbers[:SHOWN])) + (f", … ({len(numbers)})" if len(numbers) > SHOWN else "")


def rope(s: Mapping[str, Any]) -> Iterator[Note]:
    """Yield the notes of rotary positions: the pairs of channels, their base, and the numbers of a scaling."""
    if "theta" not in s:
        return
    yield f"rope.{s['pairs']}", {"width": str(s["width"]), "theta": plain(s["theta"])}
    if "backwards" in s:
        yield "rope.backwards", {}
    if "scaling" in s:
        more = {k: v for k, v in s.items() if k not in ("pairs", "theta", "width", "scaling", "backwards")}
        numbers = ", ".join(f"{k} {first_of(list(v)) if isinstance(v, list | tuple) else plain(v)}" for k, v in more.items())
        yield "rope.scaling", {"name": s["scaling"], "numbers": numbers}


def mask(s: Mapping[str, Any]) -> Iterator[Note]:
    """Yield the note of a mask: the keys that a query may see."""
    seen = s.get("mask")
    if seen is None:
        yield "mask.other", {}
    elif seen == "chosen":
        yield "mask.chosen", {}
    else:
        yield "mask", {"seen": seen}


def one(key: str, **values: str) -> Callable[[Mapping[str, Any]], Iterator[Note]]:
    """Return the function that yields one note with these settings: eps="eps" takes the setting of that name."""

    def note(s: Mapping[str, Any]) -> Iterator[Note]:
        if all(name in s for name in values.values()):
            settings = {name: s[of] for name, of in values.items()}
            yield key, {name: first_of(x) if isinstance(x, list) else plain(x) for name, x in settings.items()}

    return note


def buckets(s: Mapping[str, Any]) -> Iterator[Note]:
    """Yield the note of T5's buckets, of distances both ways or back alone."""
    if "buckets" in s:
        yield f"buckets.{'both' if s['both_ways'] else 'back'}", {"count": str(s["buckets"]), "reach": str(s["reach"])}


def scale(s: Mapping[str, Any]) -> Iterator[Note]:
    """Yield the note of a scale that is not 1/√width: if the width of a key is set, with their ratio."""
    if "width" in s:
        yield "scale.more", {"scale": plain(s["scale"]), "more": number(s["scale"] * s["width"] ** 0.5), "width": str(s["width"])}
    elif "scale" in s:
        yield "scale", {"scale": plain(s["scale"])}


# A pattern that finds a sign in a formula, and the function that yields its notes; a letter alone is no part of a longer name.
SIGNS: dict[str, Callable[[Mapping[str, Any]], Iterator[Note]]] = {
    r"μ|σ": one("deviation", eps="eps"),
    r"rms\(": one("rms", eps="eps"),
    r"rms_heads\(": one("rms_heads", eps="eps"),
    r"rms_groups\(": one("rms_groups", eps="eps", groups="groups"),
    r"\bconv\(": one("conv", rows="rows"),
    r"\bdelta\(": one("delta", scale="scale"),
    r"\bselective\(": one("selective"),
    r"\bssd\(": one("ssd"),
    r"\bread\(": lambda s: iter([("read", {})] if s["scale"] == 1 else [("read.scaled", {"scale": plain(s["scale"])})]),
    r"\bstate\b": one("state"),
    r"\bexp\(": one("exp"),
    r"\bsoftplus\(": one("softplus"),
    r"RoPE\(": rope,
    r"\bid\b": one("id"),
    r"\btype\b": one("type"),
    r"\b(t|s)\b": one("places"),
    r"\bh\b": one("head"),
    r"\bscale\b": scale,
    r"\bm\[h\]": one("slopes", slopes="slopes"),
    r"\bbfloat16\(": one("bfloat16"),
    r"\bfloat32\(": one("float32"),
    r"\bbucket\(": buckets,
    r"\bsincos\(": one("sincos"),
    r"\bwaves\(": one("waves"),
    r"\bmask\b": mask,
    r"\bmasked_fill\(": one("masked_fill", seen="mask", fill="fill"),
    r"\bsinks\b": one("sinks"),
    r"\bsoftmax\(": one("softmax"),
    r"^pattern · v(_\w+)?$": one("pattern"),
    r"\bsilu\(": one("silu"),
    r"\bxielu\(": one("xielu"),
    r"\bsparsemixer\(": one("sparsemixer"),
    r"\brelu\(": one("relu"),
    r"\brelu2\(": one("relu2"),
    r"\bgelu\(": one("gelu"),
    r"\bgelu_tanh\(": one("gelu_tanh"),
    r"\bgelu_bloom\(": one("gelu_bloom"),
    r"\bclamp\(": one("clamp"),
    r"\bmax\(": one("max", least="least"),
    r"\bsigmoid\(": one("sigmoid"),
    r"\btop\(": one("top"),
    r"\bbest\(": one("best", kept="groups_chosen", groups="groups", best="group_best"),
    r"ₙ": one("routed"),
    r"Σ_A": one("chosen_sum"),
    r"Σ_H": one("heads_sum"),
    r"√\(H·K\)": one("sizes"),
    r"\[−1\]": one("last"),
    r"\brepetition\(": one("repetition", penalty="repetition"),
    r"\bwritten\b": one("written"),
    r"\bcount\b": one("count"),
    r"\bbias\b": lambda s: iter([("bias", {"bias": ", ".join(f"{id}: {plain(x)}" for id, x in s["bias"].items())})]),
    r"\btop_k\(": one("top_k"),
    r"\btop_p\(": one("top_p"),
    r"\bmin_p\(": one("min_p"),
}  # fmt: skip


def notes(seen: Seen, dims: Mapping[str, str], text: str | None = None) -> list[Note]:
    """Return the notes of the signs in a record's formula, in the order of `SIGNS`. text: another formula, in its place."""
    own = formula(seen, dims) if text is None else text
    bare = re.sub(r"[Wb]_[\w.]+", "", own)  # a weight's name is no sign
    for path in seen.inputs:
        bare = bare.replace(path, "")
    out: list[Note] = []
    for sign, explain in SIGNS.items():
        if re.search(sign, bare):
            with suppress(*BROKEN):
                out += explain(seen.settings)
    return out


def sentences(noted: list[Note]) -> list[str]:
    """Return the notes as sentences in the current language, each once."""
    return list(dict.fromkeys(say(f"formula.{key}", **values) for key, values in noted))
