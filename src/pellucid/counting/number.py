"""A counted number with its origin: symbols, figures, and the paths that it sums or multiplies.

Number(589824, "(H·K)·D", "(12·64)·768")
total([("embed", 1, a), ("layers.0", 12, b)])       # a + 12·b: "embed + 12·layers.0"
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Number:
    """A number. value: an integer, or seconds.  symbols, filled: its formula in letters and figures.  of: the paths it is made of."""

    value: float
    symbols: str = ""
    filled: str = ""
    of: tuple[str, ...] = ()

    @property
    def formula(self) -> str:
        """Return the formula as one line: "(H·K)·D = (12·64)·768 = 589,824"."""
        return " = ".join(part for part in (self.symbols, self.filled, figure(self.value)) if part)

    def __int__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)


def figure(value: float) -> str:
    """Return an integer with thousands separated, any other number in four figures."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def total(parts: Iterable[tuple[str, int, Number]], prefix: str = "") -> Number:
    """Return the sum of (name, times, number); names are paths below `prefix`."""
    summands = [(name, times, n) for name, times, n in parts if times]
    symbols = " + ".join(name if times == 1 else f"{times}·{name}" for name, times, _ in summands)
    filled = " + ".join(figure(n.value) if times == 1 else f"{times}·{figure(n.value)}" for _, times, n in summands)
    value = sum(times * n.value for _, times, n in summands)
    paths = tuple(f"{prefix}.{name}" if prefix else name for name, *_ in summands)
    return Number(value, symbols, filled if len(summands) > 1 or any(t > 1 for _, t, _ in summands) else "", paths)


def product(symbols: str, **factors: int) -> Number:
    """Return a product with its symbols, in the order of its factors: product("B·T·D", B=1, T=5, D=8)."""
    value = 1
    for n in factors.values():
        value *= n
    return Number(value, symbols, "·".join(figure(n) for n in factors.values()))
