"""Rotary positions and the ways in which their angles are scaled, as plain data; config.py has the rest of a model."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LinearScaling:
    """Positions divided by one factor, arXiv 2306.15595."""

    factor: float


@dataclass(frozen=True)
class Llama3:
    """Slow pairs divided by a factor, fast ones kept, a smooth passage between (Llama 3.1, arXiv 2407.21783)."""

    factor: float
    low: float
    high: float
    original: int


@dataclass(frozen=True)
class Yarn:
    """Interpolation by pair between two numbers of turns within the original context, arXiv 2309.00071; amount multiplies cos and sin."""

    factor: float
    original: int
    fast: float = 32.0
    slow: float = 1.0
    amount: float = 1.0
    truncate: bool = True


@dataclass(frozen=True)
class Dynamic:
    """A base that grows with the text beyond the original context; a row is turned by the length that the text has when the row is read."""

    factor: float
    original: int


@dataclass(frozen=True)
class LongRope:
    """One factor a pair, of two lists: the second for texts longer than the original context (arXiv 2402.13753); amount as in YaRN."""

    short: tuple[float, ...]
    long: tuple[float, ...]
    original: int
    amount: float = 1.0


@dataclass(frozen=True)
class Proportional:
    """Only the first `turning` of all pairs turn, each as fast as if all did, over a factor (Gemma 4)."""

    turning: int
    factor: float = 1.0


@dataclass(frozen=True)
class Rope:
    """Rotary positions, arXiv 2104.09864: width channels of a head turn, in pairs side by side (interleaved) or half a width apart."""

    width: int
    theta: float = 10_000.0
    interleaved: bool = False
    scaling: LinearScaling | Llama3 | Yarn | Dynamic | LongRope | Proportional | None = None
    backwards: bool = False  # pairs turn by minus the angle (nanochat); never with a scaling by length

    @property
    def by_length(self) -> bool:
        """True if the angles depend on the length of the text."""
        return isinstance(self.scaling, Dynamic | LongRope)

    @property
    def scaling_name(self) -> str | None:
        """Return the scaling's name in documents: "Linear", "Yarn". None without one."""
        return None if self.scaling is None else type(self.scaling).__name__.removesuffix("Scaling")
