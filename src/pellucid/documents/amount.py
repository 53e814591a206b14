"""Amounts with their units, as people read them: 70.27 KB, 142.9 GFLOP, 340 µs. A table holds them as numbers until it is shown."""

from dataclasses import dataclass

UNITS = ("", "K", "M", "G", "T", "P", "E", "Z", "Y")


@dataclass(frozen=True)
class Amount:
    """A value with its unit: "B", "FLOP", "s", or "" for a count, which is written in full."""

    value: float
    unit: str = ""

    def __str__(self) -> str:
        if self.unit == "s":
            return seconds(self.value)
        return scaled(self.value, self.unit) if self.unit else f"{self.value:,}"


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
