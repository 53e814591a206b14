"""Kinds of ops: the name that a record keeps, its formula, and whether it is a product. Each op defines its own kind.

    LINEAR = OpKind("linear", lambda m: f"{m.x} · {m.matrix}ᵀ{m.bias}", product=True)
    note(y, LINEAR.name, (x,), (weight, bias), ...)          # beside it, in the op

Formulas, cells and counts read KINDS, and know no op by name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pellucid.watching.records import Seen


class Operands(Protocol):
    """A record's operands as a formula writes them (documents/formula.py)."""

    seen: Seen
    name: str  # the last word of the record's path
    inputs: list[str]
    weights: list[str]
    last: list[tuple[str, ...]]  # the summands of each input's last axis

    @property
    def x(self) -> str:
        """Return the first input."""

    @property
    def biases(self) -> list[str]:
        """Return the weights that are added."""

    @property
    def bias(self) -> str:
        """Write the biases as summands: " + b_q"."""

    @property
    def matrix(self) -> str:
        """Write the weight of a product, with the sums of merged adapters."""

    @property
    def additions(self) -> list[str]:
        """Write the summand of each adapter."""

    def setting(self, name: str, missing: Any = None) -> Any:
        """Return a setting of the op by name, `missing` if it has none."""


Label = Callable[[Operands], str]
Result = Literal[
    "embedding", "product", "sum", "rotation", "scores", "shares", "attention",
    "gates", "corrected scores", "choice", "expert shares", "last row", "norm", "activation",
]  # fmt: skip
KINDS: dict[str, "OpKind"] = {}


@dataclass(frozen=True)
class OpKind:
    """One kind of op. A second one of the same name is a ValueError.

    formula: writes its output; without one the output is written name(operands).
    product: True if it multiplies matrices or only copies rows; the outputs of all others are counted as elementwise work.
    result: what its output is to a view, which knows no op by name either; None where no view asks.
    labels: write the factors and summands of a cell's terms, by their names.
    template: writes the text that takes a cell's numbers, if their products do not read as the formula.
    """

    name: str
    formula: Label | None = None
    product: bool = False
    labels: Mapping[str, Label] = field(default_factory=dict)
    template: Label | None = None
    result: Result | None = None

    def __post_init__(self) -> None:
        if self.name in KINDS:
            raise ValueError(f"second: {self.name}")
        KINDS[self.name] = self


def is_product(op: str | None) -> bool:
    """True if an op's output is not elementwise work. None: a view, which is no work at all."""
    return op is None or (op in KINDS and KINDS[op].product)


def plain(x: float | str) -> str:
    """Write a number with all of its figures: 2, 0.25, 1e-20."""
    return str(int(x)) if isinstance(x, float) and x.is_integer() and abs(x) < 1e15 else str(x)


def scaling(scale: float | None) -> str:
    """Write the factor of a product: " / √32" or " · √32" for the root of a whole number, nothing for 1, else " · scale"."""
    if scale is None:
        return " · scale"
    if scale == 1:
        return ""
    for squared, sign in ((scale**-2, "/"), (scale**2, "·")):
        if abs(squared - round(squared)) < 1e-14 * squared:
            root = round(squared**0.5)
            return f" {sign} {root}" if root * root == round(squared) else f" {sign} √{round(squared)}"
    return " · scale"


def cut(name: str, have: tuple[str, ...], want: tuple[str, ...]) -> str:
    """Write an operand of which only the summand `want` of the last axis `have` is used: "q[:K]", "q[K:]"."""
    if len(have) != 2 or len(want) != 1 or want[0] not in have:
        return name
    return f"{name}[:{have[0]}]" if want[0] == have[0] else f"{name}[{have[0]}:]"


def masked(m: Operands) -> str:
    """Write " + mask" if there is a mask that hides anything."""
    return " + mask" if m.setting("mask", "") != "" else ""


def unmasked(m: Operands) -> str:
    """Write the scores that a softmax takes: with a mask added, or with a number in place of those that it hides."""
    fill = m.setting("fill")
    return f"{m.inputs[0]}{masked(m)}" if fill is None or not masked(m) else f"masked_fill({m.inputs[0]}, {plain(fill)})"


def scale_label(m: Operands) -> str:
    """Write a scale as a factor: 1/√32, √32, or its name."""
    text = scaling(m.setting("scale"))
    return f"1/{text.removeprefix(' / ')}" if text.startswith(" / ") else text.removeprefix(" · ")


EDIT = OpKind("edit", lambda m: "edit")  # a value that a watch has put in place of an op's output
