"""The formula of a tensor in the field's notation: `attn_norm · W_qᵀ + b_q` from the record's op, inputs, weights and settings.

A formula is complete: each name in it is an operand or a weight of the record, or is explained by `notation`. Names are shortened as far
as they stay unambiguous within a block. Each op brings its own formula (ops/kinds.py); one without shows as op(inputs).
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pellucid.axes import parse
from pellucid.ops.kinds import KINDS, cut, plain
from pellucid.watching.records import Seen

BROKEN = (LookupError, ValueError, TypeError, ArithmeticError)  # of a record from a file, whose operands and settings may be anything


class RecordOperands:
    """A record's operands under their short names, and the numbers that its op was set to."""

    def __init__(self, seen: Seen, dims: Mapping[str, str]) -> None:
        self.seen = seen
        self.name = seen.path.rpartition(".")[2]
        self.last = [last(dims.get(p, "")) for p in seen.inputs]
        self.inputs = [short(p, seen.path) for p in seen.inputs]
        self.weights = apart(seen.weights)

    def setting(self, name: str, missing: Any = None) -> Any:
        """Return the op's setting `name`, or `missing`: a trace of an older version may lack it."""
        return self.seen.settings.get(name, missing)

    @property
    def x(self) -> str:
        """Return the first operand, cut to the channels that are used; rows of the KV cache are named "past"."""
        return cut(self.inputs[0], self.last[0], last(self.seen.dims)) if self.inputs else "past"

    @property
    def biases(self) -> list[str]:
        """Return the weights that are added."""
        return [w for w in self.weights[1:] if w.startswith("b_")]

    @property
    def bias(self) -> str:
        return "".join(f" + {w}" for w in self.biases)

    @property
    def matrix(self) -> str:
        """Return the weight of a product: with adapters a sum, of a latent's keys or values their rows of the shared weight."""
        low = [w for w in self.weights[1:] if not w.startswith("b_")]
        scales = self.setting("scales") or ["s"] * (len(low) // 2)
        own, *gains = ["gain·" * g for g in self.setting("gains") or [False] * (1 + len(scales))]
        added = [f"{g}{plain(s)}·{b}·{a}" for g, s, a, b in zip(gains, scales, low[::2], low[1::2], strict=True)]
        weight = f"({' + '.join([own + self.weights[0], *added])})" if low else self.weights[0]
        if not self.latent or not self.seen.dims.startswith("B S H"):
            return weight
        return weight + ("[:K]" if last(self.seen.dims) == ("K",) else "[K:]")

    @property
    def latent(self) -> bool:
        """True if the tensor was made from a latent, by the matrix whose rows keys and values share."""
        return self.seen.weights[0].endswith(".kv_b.weight")

    @property
    def additions(self) -> list[str]:
        """Return the addition of each adapter: its low-rank product times its scale."""
        names = [name for path, name in zip(self.seen.inputs, self.inputs, strict=True) if path.endswith(".lora_b")]
        scales = self.setting("scales") or ["s"] * len(names)
        _, *gains = ["gain · " * g for g in self.setting("gains") or [False] * (1 + len(names))]
        return [f"{g}{plain(s)} · {name}" for g, s, name in zip(gains, scales, names, strict=True)]


def last(dims: str) -> tuple[str, ...]:
    """Return the summands of the last axis: ("K", "R") for "B T H K+R"."""
    axes = parse(dims)
    return axes[-1][0] if axes and len(axes[-1]) == 1 else ()


def block(path: str) -> tuple[str, str]:
    """Split a path into its block and the rest: "layers.0.attn.q" -> ("layers.0", "attn.q"); the block is "" outside of blocks."""
    words = path.split(".")
    if "layers" in words and (at := words.index("layers") + 2) < len(words):
        return ".".join(words[:at]), ".".join(words[at:])
    return "", path


def short(path: str, near: str) -> str:
    """Shorten a path next to `near`: to its last word if both lie in one block."""
    mine, rest = block(path)
    return rest.rpartition(".")[2] if mine and mine == block(near)[0] else path


def apart(paths: Sequence[str]) -> list[str]:
    """Return the symbols of weights, each with as many words of its path as tell it from the others."""
    for words in range(1, 1 + max((p.count(".") for p in paths), default=0)):
        symbols = [symbol(p, words) for p in paths]
        if len(set(symbols)) == len(set(paths)):
            return symbols
    return [symbol(p, 1) for p in paths]


def symbol(path: str, words: int = 1) -> str:
    """Return the symbol of a weight: "layers.0.attn.q.weight" -> W_q, its bias b_q; with two words W_attn.q."""
    owner, _, last = path.rpartition(".")
    if last in ("weight", "bias"):
        return f"{'W' if last == 'weight' else 'b'}_{'.'.join(owner.split('.')[-words:])}"
    name = ".".join([*owner.split("."), last][-words:])
    return f"b_{name.removesuffix('_bias')}" if last.endswith("_bias") else f"W_{name}" if last in ("gate", "up", "down") else name


def formula(seen: Seen, dims: Mapping[str, str]) -> str:
    """Return the formula of a record. dims: of the other records, by path."""
    made, kind = RecordOperands(seen, dims), KINDS.get(seen.op or "tap")
    with suppress(*BROKEN):  # a file may name an unknown op, or too few operands
        if kind is not None and kind.formula is not None and (text := kind.formula(made)):
            return text
    return "" if seen.op in (None, "tap") else f"{seen.op}({', '.join(made.inputs + made.weights)})"
