"""A matrix with low-rank additions (LoRA, arXiv 2106.09685): y = x Wᵀ + b + Σ s·(x Aᵀ) Bᵀ, one summand for each adapter by its name.

An addition with magnitudes (DoRA, arXiv 2402.09353) sets the length of each row of W + s·B·A: they are multiplied by the gain, which is
magnitude / length. Of several adapters each multiplies what those before it have made, as PEFT adds them up.

A Linear becomes an AdaptedLinear where it stands and is a Linear again when its last addition goes, so a plain model pays nothing.
"""

from collections.abc import Callable
from typing import cast

from torch import Tensor, nn

from pellucid import ops
from pellucid.nn.linear import Linear, SummedLinear
from pellucid.watching.meta import META
from pellucid.watching.tap import tap


class Addition(nn.Module):
    """x [... in] -> (x Aᵀ) Bᵀ [... out], with L numbers in between; lora_a is [L in], lora_b [out L].

    axes: the matrix's own, "(H K) D".  rows: the letter of the rows that it meets.  drawn: makes the mask of what a step of training
    drops, None outside of one; dropout: the share.  place: the path that the draw is of, which matrices with one A share.
    gain: [out], None for a plain addition.  magnitude: [out] as a file has it, from which the gain was made; a parameter where it trains,
    and the gain follows in each forward.
    """

    drawn: Callable[[Tensor], Tensor] | None = None
    dropout, place = 0.0, ""

    def __init__(
        self, a: nn.Parameter, b: nn.Parameter, scale: float, axes: str, rows: str,
        gain: nn.Parameter | None = None, magnitude: Tensor | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        out, _, inner = axes.rpartition(" ") if axes.startswith("(") else axes.partition(" ")
        self.axes = {"lora_a": f"L {inner}", "lora_b": f"{out} L", "gain": f"{out}", "magnitude": f"{out}"}
        self.scale, self.rows = scale, rows
        self.out, self.inner = (axis.replace(" ", "·") for axis in (out, inner))  # of a tensor's label, one word: "(H·K)"
        self.lora_a, self.lora_b, self.gain, self.magnitude = holder(a), holder(b), gain, magnitude

    def forward(self, x: Tensor, weight: Tensor) -> ops.Added:
        gain, base = self.gain_on(weight), None
        if self.drawn is not None:
            x = tap(ops.dropped(x, self.drawn(x)), f"dropped: B {self.rows} {self.inner}")
            base = None if gain is None else tap(ops.linear(x, weight), f"base: B {self.rows} {self.out}")
        low = tap(self.lora_a(x), f"lora_a: B {self.rows} L")
        return ops.Added(tap(self.lora_b(low), f"lora_b: B {self.rows} {self.out}"), self.scale, gain, base)

    def gain_on(self, weight: Tensor) -> Tensor | None:
        """Return what multiplies the rows of W + s·B·A, None for a plain addition. weight: W [out in]."""
        if not isinstance(self.magnitude, nn.Parameter):
            return self.gain
        return ops.gain(self.magnitude, weight, self.lora_a.weight, self.lora_b.weight, self.scale)


class AdaptedLinear(Linear):
    """x [... in] -> [... out]: the plain product, and each adapter's addition times its scale."""

    adapters: nn.ModuleDict

    def additions(self) -> list[Addition]:
        return [cast(Addition, a) for a in self.adapters.values()]

    def forward(self, x: Tensor) -> Tensor:
        return ops.adapted(super().forward(x), x, self.weight, self.bias, [a(x, self.weight) for a in self.additions()])

    def dense_weight(self) -> Tensor:
        """Return the weight and its additions as one matrix."""
        low = [(a.lora_a.weight, a.lora_b.weight, a.scale, a.gain_on(self.weight)) for a in self.additions()]
        return ops.merged(self.weight, low)


class SummedAdaptedLinear(AdaptedLinear, SummedLinear):
    """An AdaptedLinear whose inputs are split over ranks: the product is summed over them, and so is x Aᵀ, whose B is on each rank."""


def holder(weight: nn.Parameter) -> Linear:
    """Make a Linear around this parameter, which another module may hold too."""
    with META:
        made = Linear(weight.shape[1], weight.shape[0], False)
    made.weight = weight
    return made


def add(linear: Linear, name: str, addition: Addition) -> None:
    """Put an adapter's addition on a Linear, under the adapter's name."""
    if not isinstance(linear, AdaptedLinear):
        linear.__class__ = AdaptedLinear
        linear.adapters = nn.ModuleDict()
    cast(AdaptedLinear, linear).adapters[name] = addition


def remove(linear: AdaptedLinear, name: str) -> None:
    """Take an addition off; without one it is the plain Linear again."""
    del linear.adapters[name]
    if not linear.adapters:
        del linear.adapters
        linear.__class__ = Linear  # type: ignore[assignment]
