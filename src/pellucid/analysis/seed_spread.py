"""An effect over several seeds: what a change does to each measure of a run, with its mean and its spread.

spreads = over_seeds([measured(compare(a, b), by_depth(a, b, changes)) for a, b in runs])     # a pair of runs for each seed
spreads[0].path, spreads[0].gradient[1].mean, spreads[0].gradient[1].spread
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from pellucid.analysis.compare import Comparison
from pellucid.analysis.depth import Depth


@dataclass(frozen=True)
class SeedValues:
    """A number over seeds. values: of each seed."""

    values: Sequence[float]

    @property
    def mean(self) -> float:
        """Return the mean over seeds."""
        return fmean(self.values)

    @property
    def spread(self) -> float:
        """Return the standard deviation between seeds, over one less than their number; 0 of one seed."""
        return stdev(self.values) if len(self.values) > 1 else 0.0


@dataclass(frozen=True)
class SeedSpread:
    """One place of the stream over seeds, each pair of the first runs and the second; None where a seed has no number.

    difference: of the second run's tensor from the first's, over its size.
    """

    path: str
    difference: SeedValues | None
    size: tuple[SeedValues | None, SeedValues | None]
    likeness: tuple[SeedValues | None, SeedValues | None]
    gradient: tuple[SeedValues | None, SeedValues | None]


@dataclass(frozen=True)
class SeedRun:
    """What is kept of one seed's two runs. relative: {path: size of the difference}.  divergence: of the first answers."""

    relative: dict[str, float | None]
    depth: dict[str, Depth]
    divergence: float | None


def measured(c: Comparison, depth: Sequence[Depth]) -> SeedRun:
    """Return the numbers of a comparison, without its tensors."""
    first = [t for t in c.tensors if t.step == c.tensors[0].step and t.call == 0]
    return SeedRun({t.path: t.relative for t in first}, {d.path: d for d in depth}, c.answers[0].divergence if c.answers else None)


def over_seeds(runs: Sequence[SeedRun]) -> list[SeedSpread]:
    """Return how far apart two runs are at each place of the stream, over seeds."""
    out = []
    for path in runs[0].depth:
        own = [run.depth[path] for run in runs]
        sizes, alike, slopes = (
            (spread_of([getattr(d, name)[0] for d in own]), spread_of([getattr(d, name)[1] for d in own]))
            for name in ("size", "likeness", "gradient")
        )
        out.append(SeedSpread(path, spread_of([run.relative.get(path) for run in runs]), sizes, alike, slopes))
    return out


def divergence(runs: Sequence[SeedRun]) -> SeedValues | None:
    """Return the divergence of the first answers over seeds."""
    return spread_of([run.divergence for run in runs])


def spread_of(values: Sequence[float | None]) -> SeedValues | None:
    """Return numbers as one over seeds; None if a seed has none."""
    known = [v for v in values if v is not None]
    return SeedValues(known) if known and len(known) == len(values) else None
