"""What made a tensor, in the field's notation: `attn_norm · W_qᵀ + b_q` from the record's op, inputs, weights and settings.

A text is the whole of what its op computes: each name in it is an operand or a weight of the record, or is told by `notation`. Names are
shortened to what is unambiguous within a block. An op that this file does not know shows as op(inputs), never as nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pellucid.axes import parse
from pellucid.watching.watch import Seen

Write = Callable[["Made"], str]
BROKEN = (LookupError, ValueError, TypeError, ArithmeticError)  # of a record from a file, whose operands and settings may be anything


class Made:
    """A record's operands under their short names, and the numbers that its op was set to."""

    def __init__(self, seen: Seen, dims: Mapping[str, str]) -> None:
        self.seen = seen
        self.name = seen.path.rpartition(".")[2]
        self.last = [last(dims.get(p, "")) for p in seen.inputs]
        self.inputs = [short(p, seen.path) for p in seen.inputs]
        self.weights = apart(seen.weights)

    def setting(self, name: str, missing: Any = None) -> Any:
        """A number or name that the op was set to; a trace of an older version may lack it."""
        return self.seen.settings.get(name, missing)

    @property
    def x(self) -> str:
        """The first operand, or the part of its channels that is meant; rows that come from the past have no other name."""
        return cut(self.inputs[0], self.last[0], last(self.seen.dims)) if self.inputs else "past"

    @property
    def biases(self) -> list[str]:
        """The weights that are added."""
        return [w for w in self.weights[1:] if w.startswith("b_")]

    @property
    def bias(self) -> str:
        return "".join(f" + {w}" for w in self.biases)

    @property
    def matrix(self) -> str:
        """The weight of a product; one that adapters were added to is a sum, of one that grows keys and values the rows of either."""
        low = [w for w in self.weights[1:] if not w.startswith("b_")]
        scales = self.setting("scales") or ["s"] * (len(low) // 2)
        added = [f"{plain(s)}·{b}·{a}" for s, a, b in zip(scales, low[::2], low[1::2], strict=True)]
        whole = f"({' + '.join([self.weights[0], *added])})" if low else self.weights[0]
        if not self.latent or not self.seen.dims.startswith("B S H"):
            return whole
        return whole + ("[:K]" if last(self.seen.dims) == ("K",) else "[K:]")

    @property
    def latent(self) -> bool:
        """Whether this grew from a latent, by rows of one matrix that keys and values share."""
        return self.seen.weights[0].endswith(".kv_b.weight")

    @property
    def additions(self) -> list[str]:
        """What each adapter adds: its low-rank product times its scale."""
        names = [name for path, name in zip(self.seen.inputs, self.inputs, strict=True) if path.endswith(".lora_b")]
        return [f"{plain(s)} · {name}" for s, name in zip(self.setting("scales") or ["s"] * len(names), names, strict=True)]


def last(dims: str) -> tuple[str, ...]:
    """The summands of the last axis: those of "B T H K+R" are K and R."""
    axes = parse(dims)
    return axes[-1][0] if axes and len(axes[-1]) == 1 else ()


def cut(name: str, have: tuple[str, ...], want: tuple[str, ...]) -> str:
    """An operand whose last axis is a sum, of which one summand is used: "q[:K]", "q[K:]"."""
    if len(have) != 2 or len(want) != 1 or want[0] not in have:
        return name
    return f"{name}[:{have[0]}]" if want[0] == have[0] else f"{name}[{have[0]}:]"


def block(path: str) -> tuple[str, str]:
    """The block that a path lies in and the rest: "layers.0.attn.q" -> ("layers.0", "attn.q"); "" outside of blocks."""
    words = path.split(".")
    if "layers" in words and (at := words.index("layers") + 2) < len(words):
        return ".".join(words[:at]), ".".join(words[at:])
    return "", path


def short(path: str, near: str) -> str:
    """A path as it is written next to another: its last word within one block."""
    mine, rest = block(path)
    return rest.rpartition(".")[2] if mine and mine == block(near)[0] else path


def apart(paths: Sequence[str]) -> list[str]:
    """Weights as they are written in formulas, each by as many words of its path as tell it from the others."""
    for words in range(1, 1 + max((p.count(".") for p in paths), default=0)):
        found = [symbol(p, words) for p in paths]
        if len(set(found)) == len(set(paths)):
            return found
    return [symbol(p, 1) for p in paths]


def symbol(path: str, words: int = 1) -> str:
    """A weight as it is written in formulas: "layers.0.attn.q.weight" -> W_q, its bias b_q; by more words W_attn.q."""
    owner, _, last = path.rpartition(".")
    if last in ("weight", "bias"):
        return f"{'W' if last == 'weight' else 'b'}_{'.'.join(owner.split('.')[-words:])}"
    name = ".".join([*owner.split("."), last][-words:])
    return f"b_{name.removesuffix('_bias')}" if last.endswith("_bias") else f"W_{name}" if last in ("gate", "up", "down") else name


def plain(x: float | str) -> str:
    """A number with all of its figures: 2, 0.25, 1e-20."""
    return str(int(x)) if isinstance(x, float) and x.is_integer() and abs(x) < 1e15 else str(x)


def scaling(scale: float | None) -> str:
    """How a product is scaled: " / √32" or " · √32" where that is what the number is, nothing for 1, else by its name."""
    if scale is None:
        return " · scale"
    if scale == 1:
        return ""
    for squared, sign in ((scale**-2, "/"), (scale**2, "·")):
        if abs(squared - round(squared)) < 1e-14 * squared:
            root = round(squared**0.5)
            return f" {sign} {root}" if root * root == round(squared) else f" {sign} √{round(squared)}"
    return " · scale"


def by_distance(m: Made) -> str:
    """What distance alone adds to scores: ALiBi's slopes, T5's table of buckets, keys of distances."""
    out = ""
    if m.setting("slopes") is not None:
        times = scaling(m.setting("slope_scale", 1.0)).replace("scale", plain(m.setting("slope_scale", 1.0)))
        out = f" + bfloat16(m[h] · s){times}" if m.setting("rounded") else f" − m[h] · |t − s|{times}"
    for w in m.weights:
        if w.endswith("distance"):
            out += f" + {m.inputs[0]}·(sincos(t − s) · {w}ᵀ)ᵀ{scaling(m.setting('scale'))}"
        else:
            out += f" + {w}[bucket(s − t), h]"
    return out


def scores(m: Made) -> str:
    """q·kᵀ / √K, of two pairs in latent attention, within a soft bound where there is one, and what is added by distance."""
    inner, bound = products(m) + scaling(m.setting("scale")), m.setting("cap")
    return (inner if bound is None else f"{plain(bound)} · tanh(({inner}) / {plain(bound)})") + by_distance(m)


def products(m: Made) -> str:
    """The queries times the keys."""
    half = len(m.inputs) // 2
    named = zip(m.inputs[:half], m.last[:half], m.inputs[half:], m.last[half:], strict=True)
    pairs = [f"{cut(q, q_axis, k_axis)}·{k}ᵀ" for q, q_axis, k, k_axis in named]
    return pairs[0] if len(pairs) == 1 else f"({' + '.join(pairs)})"


def softmax(m: Made) -> str:
    """Over what is seen, and a sink beside it, where it is attention's."""
    extra = "".join(f", {w}" for w in m.weights)
    return f"softmax({m.inputs[0]}{masked(m)}{extra})"


def masked(m: Made) -> str:
    """The mask, where there is one that hides anything."""
    return " + mask" if m.setting("mask", "") != "" else ""


def act(m: Made) -> str:
    """The activation of the first operand."""
    return f"{m.setting('act', 'act')}({m.inputs[0]})"


def gate(m: Made) -> str:
    if m.setting("act") == "clamped":
        g, up = m.inputs
        return f"min({g}, 7) · sigmoid(1.702 · min({g}, 7)) · (clamp({up}, −7, 7) + 1)"
    return f"{act(m)} · {m.inputs[1]}"


def experts(m: Made) -> str:
    return f"{m.x} · {m.weights[0]}[eₙ]ᵀ" + "".join(f" + {b}[eₙ]" for b in m.weights[1:])


def top(m: Made) -> str:
    """The experts of the highest scores, of those in the best groups where there are groups; or the keys of the highest scores."""
    few, groups = m.setting("chosen", m.seen.shape[-1]), m.setting("groups")
    of = f"best({m.x}, {m.setting('groups_chosen')}, {groups}, {m.setting('group_best')})" if groups else m.x
    return f"top({of}{masked(m)}, {few})"


def share(m: Made) -> str:
    """The affinities of the chosen, over their sum where they are to sum to the scale."""
    mine, scale = f"{m.x}[{m.inputs[1]}]", m.setting("scale", 1)
    over = f" / (Σ_A {mine} + 1e-20)" if m.setting("normalised") else ""
    return mine + over + ("" if scale == 1 else f" · {plain(scale)}")


def look(m: Made) -> str:
    """A row of a table: by id, by type, by position and how far the table's first one is from 0."""
    skip = m.setting("skip", 0)
    row = {"positions": "t", "types": "type"}.get(m.name, "id")
    return f"{m.weights[0]}[{row} + {skip}]" if skip else f"{m.weights[0]}[{row}]"


def growth(m: Made) -> str:
    return f"1 + {plain(m.setting('scale', 'scale'))} · ln(1 + ⌊(t + 1) / {m.setting('floor', 'floor')}⌋)"


def gain(m: Made) -> str:
    """What a norm's weight multiplies by."""
    return f"(1 + {m.weights[0]})" if m.setting("offset") else m.weights[0]


def bound(m: Made) -> str:
    return plain(m.setting("cap", "cap"))


WRITTEN: dict[str, Write] = {
    "look": look,
    "add": lambda m: " + ".join(m.inputs),
    "layer norm": lambda m: f"({m.x} − μ) / σ · {m.weights[0]}{m.bias}",
    "rms": lambda m: f"{m.x} / rms({m.x})" + (f" · {gain(m)}" if m.weights else ""),
    "linear": lambda m: f"{m.x} · {m.matrix}ᵀ{m.bias}",
    "adapted": lambda m: f"{m.x} · {m.weights[0]}ᵀ{m.bias}{''.join(f' + {a}' for a in m.additions)}",
    "rotate": lambda m: f"RoPE({m.x})",
    "scores": scores,
    "softmax": softmax,
    "attend": lambda m: "pattern · v",
    "attend latent": lambda m: "pattern · v",
    "act": act,
    "gate": gate,
    "sigmoid": lambda m: f"sigmoid({m.x})",
    "correct": lambda m: f"{m.x} + {m.weights[0]}",
    "top": top,
    "index": lambda m: f"Σ_H {m.inputs[1]} · max({m.inputs[0]}·{m.inputs[2]}ᵀ, 0) / √(H·K)",
    "weighted": lambda m: f"{m.inputs[1]} · {m.inputs[0]}",
    "tanh": lambda m: f"tanh({m.x})",
    "share": share,
    "pick": lambda m: f"{m.x}[tₙ]",
    "experts": experts,
    "combine": lambda m: f"Σ_A {' · '.join(reversed(m.inputs))}",
    "scaled": lambda m: m.x + scaling(m.setting("scale")),
    "tempered": lambda m: f"{m.x} · ({growth(m)})",
    "cap": lambda m: f"{bound(m)} · tanh({m.x} / {bound(m)})",
    "gated": lambda m: f"sigmoid({m.inputs[1]}) · {m.x}",
    "sinusoid": lambda m: "float32(sincos(t))",
    "last row": lambda m: f"{m.x}[−1]",
    "bias": lambda m: f"{m.x} + bias",
    "repetition": lambda m: f"repetition({m.x}, {plain(m.setting('repetition', 'r'))})",
    "presence": lambda m: f"{m.x} − {plain(m.setting('presence', 'presence'))} · written",
    "frequency": lambda m: f"{m.x} − {plain(m.setting('frequency', 'frequency'))} · count",
    "temperature": lambda m: f"({m.x} − max({m.x})) / {plain(m.setting('temperature', 'temperature'))}",
    **{name: lambda m, name=name: f"{name}({m.x}, {plain(m.setting(name, name))})" for name in ("top_k", "top_p", "min_p")},  # type: ignore[misc]
    "probabilities": lambda m: f"softmax({m.x})",
    "edit": lambda m: "edit",
}


def formula(seen: Seen, dims: Mapping[str, str]) -> str:
    """The formula of a record; dims: of the other records, by path."""
    made = Made(seen, dims)
    with suppress(*BROKEN):  # a file may name an unknown op, or too few operands
        if text := WRITTEN[seen.op or "tap"](made):
            return text
    return "" if seen.op in (None, "tap") else f"{seen.op}({', '.join(made.inputs + made.weights)})"
