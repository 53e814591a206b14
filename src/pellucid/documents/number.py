"""Numbers as people read them: one function for every value that is shown, so that the same value looks the same everywhere.

number(-2.1139) is -2.114, number(12.339) is 12.34, number(0.0000123) is 1.2e-5
"""

import math


def number(x: float) -> str:
    """Write `x` in up to five figures and at most eight characters; an int as it is."""
    if isinstance(x, int):
        return str(x)
    if not math.isfinite(x):
        return "NaN" if math.isnan(x) else "∞" if x > 0 else "-∞"
    a = abs(x)
    if a == 0:
        return "0"
    if not 0.0005 <= a < 99999.5:
        mantissa, exponent = (f"{x:.1e}" if a < 1 else f"{x:.3e}").split("e")
        return f"{mantissa}e{int(exponent)}"
    decimals = 3 if a < 9.9995 else 2 if a < 99.995 else 1 if a < 999.95 else 0
    return f"{x:.{decimals}f}"


def percent(share: float) -> str:
    """Write a share of 1: percent(0.3333) is 33.33%, percent(0.00004) is 0.004%."""
    return f"{number(100.0 * share)}%"


def finite(x: float | None) -> float | None:
    """Return x for JSON: None for NaN and infinities, which it lacks."""
    return None if x is None or not math.isfinite(x) else x


def count(n: int) -> str:
    """Write a count with its thousands apart: 16,512."""
    return f"{n:,}"


def shape(sizes: tuple[int, ...]) -> str:
    """Write a shape: 128×512, or 1 for a single number."""
    return "×".join(map(str, sizes)) or "1"
