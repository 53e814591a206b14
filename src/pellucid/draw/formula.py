"""What made a tensor, in the field's notation: `attn_norm · W_qᵀ + b_q` from the record's op, inputs and weights.

Names are shortened to what is unambiguous within a block. An op that this page does not know shows as op(inputs), never as nothing.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from torch import nn

from pellucid.axes import parse
from pellucid.watching import Seen

Write = Callable[["Made"], str]


class Made:
    """A record's operands under their short names, and the numbers of the part that made it."""

    def __init__(self, seen: Seen, module: nn.Module | None, dims: Mapping[str, str]) -> None:
        self.seen, self.module = seen, module
        self.name = seen.path.rpartition(".")[2]
        self.last = [last(dims.get(p, "")) for p in seen.inputs]
        self.inputs = [short(p, seen.path) for p in seen.inputs]
        self.weights = [symbol(p) for p in seen.weights]

    @property
    def x(self) -> str:
        """The first operand, or the part of its channels that is meant; rows that come from the past have no other name."""
        return cut(self.inputs[0], self.last[0], last(self.seen.dims)) if self.inputs else "past"

    @property
    def bias(self) -> str:
        return "".join(f" + {w}" for w in self.weights[1:] if w.startswith("b_"))

    @property
    def matrix(self) -> str:
        """The weight of a product; one that adapters were added to is a sum."""
        low = [w for w in self.weights[1:] if not w.startswith("b_")]
        added = (f"s·{b}·{a}" for a, b in zip(low[::2], low[1::2], strict=True))
        return f"({' + '.join([self.weights[0], *added])})" if low else self.weights[0]

    @property
    def additions(self) -> str:
        """What each adapter adds: its low-rank product times its scale."""
        out = ""
        for path, name in zip(self.seen.inputs, self.inputs, strict=True):
            if path.endswith(".lora_b"):
                part = self.module.get_submodule(path.rpartition(".")[0]) if self.module is not None else None
                out += f" + {getattr(part, 'scale', 's')} · {name}"
        return out

    def number(self, *names: str) -> Any:
        """A number or name that the making part was built with: its scale, its activation."""
        parent = self.seen.path.rpartition(".")[0]
        try:
            part: Any = self.module.get_submodule(parent) if self.module is not None else None
        except AttributeError:  # not every tap's parent is a module
            return None
        for holder in (part, getattr(part, "spec", None), getattr(part, "config", None)):
            for name in names:
                if (found := getattr(holder, name, None)) is not None:
                    return found
        return None


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


def symbol(path: str) -> str:
    """A weight as it is written in formulas: "layers.0.attn.q.weight" -> W_q, its bias b_q."""
    owner, _, last = path.rpartition(".")
    if last in ("weight", "bias"):
        return f"{'W' if last == 'weight' else 'b'}_{owner.rpartition('.')[2]}"
    return f"b_{last.removesuffix('_bias')}" if last.endswith("_bias") else f"W_{last}" if last in ("gate", "up", "down") else last


def scaling(scale: float | None) -> str:
    """How scores are scaled: " / √32" where that is what the number is, nothing for 1."""
    if scale is None:
        return " · scale"
    if scale == 1:
        return ""
    squared = scale**-2
    return f" / √{round(squared)}" if abs(squared - round(squared)) < 1e-6 * squared else f" · {scale:.4g}"


BY_DISTANCE = {"W_distance": "q·r"}


def scores(m: Made) -> str:
    """q·kᵀ / √K, of two pairs in latent attention, and what is added by distance."""
    half = len(m.inputs) // 2
    named = zip(m.inputs[:half], m.last[:half], m.inputs[half:], m.last[half:], strict=True)
    pairs = [f"{cut(q, q_axis, k_axis)}·{k}ᵀ" for q, q_axis, k, k_axis in named]
    cap = m.number("cap")
    product = pairs[0] if len(pairs) == 1 else f"({' + '.join(pairs)})"
    inner = product + scaling(m.number("logit_scale" if m.name == "head_scaled" else "scale"))
    added = "".join(f" + {BY_DISTANCE.get(w, w)}[s-t]" for w in m.weights)
    return (inner if cap is None else f"{cap:g} · tanh(({inner}) / {cap:g})") + added


def softmax(m: Made) -> str:
    """Over what is seen, and a sink beside it, where it is attention's."""
    extra = "".join(f", {w}" for w in m.weights)
    return f"softmax({m.x} + mask{extra})" if m.name == "pattern" else f"softmax({m.x})"


def gate(m: Made) -> str:
    act = m.number("act") or "act"
    if len(m.inputs) < 2:
        return f"{act}({m.x})"
    return f"{act}({m.inputs[0]}, {m.inputs[1]})" if act == "clamped" else f"{act}({m.inputs[0]}) · {m.inputs[1]}"


def experts(m: Made) -> str:
    return f"{m.x} · {m.weights[0]}[e]ᵀ" + "".join(f" + {b}[e]" for b in m.weights[1:])


def scaled(m: Made) -> str:
    """By a number of the configuration, or by one that grows with the position."""
    temper = m.number("temper") if m.name == "q_grown" else None
    if temper is not None:
        return f"{m.x} · (1 + {temper.scale:g} · ln(1 + ⌊(t + 1) / {temper.floor}⌋))"
    return m.x + scaling(m.number("logit_scale" if m.name == "head_scaled" else "scale"))


def cap(m: Made) -> str:
    """The soft bound of numbers, by its letter where the model is not at hand."""
    bound = m.number("cap")
    word = "cap" if bound is None else f"{bound:g}"
    return f"{word} · tanh({m.x} / {word})"


WRITTEN: dict[str, Write] = {
    "look": lambda m: f"{m.weights[0]}[{'t' if m.name == 'positions' else 'id'}]",
    "add": lambda m: " + ".join(m.inputs),
    "layer norm": lambda m: f"({m.x} − μ)/σ · w" + " + b" * (len(m.weights) > 1),
    "rms": lambda m: f"{m.x}/rms" + " · w" * len(m.weights),
    "linear": lambda m: f"{m.x} · {m.matrix}ᵀ{m.bias}",
    "adapted": lambda m: f"{m.x} · {m.weights[0]}ᵀ{m.bias}{m.additions}",
    "rotate": lambda m: f"RoPE({m.x})",
    "scores": scores,
    "softmax": softmax,
    "attend": lambda m: "pattern · v",
    "attend latent": lambda m: "pattern · v",
    "act": gate,
    "gate": gate,
    "sigmoid": lambda m: f"σ({m.x})",
    "correct": lambda m: f"{m.x} + {m.weights[0]}",
    "top": lambda m: f"top {m.number('chosen') or m.seen.shape[-1]} of {m.x}",
    "index": lambda m: f"Σ {m.inputs[1]} · max({m.inputs[0]}·{m.inputs[2]}ᵀ, 0) / √(H·K)" if len(m.inputs) > 2 else f"index({m.x})",
    "weighted": lambda m: " · ".join(reversed(m.inputs)),
    "tanh": lambda m: f"tanh({m.x})",
    "share": lambda m: f"share({m.x}[chosen])",
    "pick": lambda m: f"{m.x}[tᵢ]",
    "experts": experts,
    "combine": lambda m: f"Σ {' · '.join(reversed(m.inputs))}",
    "scaled": scaled,
    "cap": cap,
    "gated": lambda m: f"σ({m.inputs[1]}) · {m.x}",
    "sinusoid": lambda m: "sin, cos(t / 10000^(2i/D))",
    "edit": lambda m: "edit",
    "tap": lambda m: "",
}


def formula(seen: Seen, module: nn.Module | None = None, dims: Mapping[str, str] | None = None) -> str:
    """The formula of a record; module: the model, for the numbers that a part was built with; dims: of the other records, by path."""
    made = Made(seen, module, dims or {})
    write = WRITTEN.get(seen.op or "tap")
    if write is not None and (made.inputs or made.weights):
        with suppress(IndexError, ValueError):  # a file may name too few operands
            return write(made)
    return f"{seen.op}({', '.join(made.inputs + made.weights)})"
