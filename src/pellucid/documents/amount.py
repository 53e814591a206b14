"""Amounts with their units, as people read them: 70.27 KB, 142.9 GFLOP, 340 µs. A table holds them as numbers until it is shown.

The page writes by the same rules (web/src/tensor/number.ts); a test compares them.
"""

from dataclasses import dataclass

UNITS = ("", "K", "M", "G", "T", "P", "E", "Z", "Y")


@dataclass(frozen=True)
class Amount:
    """A value with its unit: "B", "FLOP", "s", or "" for a count, which is written in full, and for a rate or a price."""

    value: float
    unit: str = ""

    def __str__(self) -> str:
        if self.unit == "s":
            return seconds(self.value)
        if self.unit:
            return scaled(self.value, self.unit)
        return f"{self.value:,}" if isinstance(self.value, int) else figures(self.value)


def scaled(x: float, unit: str = "") -> str:
    """Write a large number in four figures with its unit: 70.27 KB."""
    place = 0
    while abs(x) >= 999.95 and place < len(UNITS) - 1:
        x, place = x / 1000, place + 1
    return f"{x:.4g} {UNITS[place]}{unit}".rstrip()


def seconds(x: float) -> str:
    """Write `x` seconds in three figures: 1.2 ms, 340 µs."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if x >= size:
            return f"{x / size:.3g} {unit}"
    return f"{x / 1e-9:.3g} ns"


def figures(x: float) -> str:
    """Write a rate or a price in four figures, from 1,000 on in whole numbers: 1,235, 4.5, 0.01235."""
    return f"{round(x):,}" if x >= 1000 else f"{x:.4g}"
