"""When experts starve: the same small model trained without balancing, with a correction, and with an auxiliary loss."""

from collections.abc import Iterator

from pellucid.analysis.starvation import trained
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import LinePanel, Panel, TablePanel
from pellucid.messages import say

WAYS = ("exhibit.balance.none", "exhibit.balance.correction", "exhibit.balance.auxiliary")
COLUMNS = (
    "exhibit.balance.way",
    "exhibit.balance.added",
    "exhibit.balance.fullest",
    "exhibit.balance.starved",
    "exhibit.balance.loss",
)
SOURCES = ("exhibit.balance.nothing", "exhibit.balance.rule", "exhibit.balance.penalty")


def show(e: Experiment) -> Iterator[Panel | Claim]:
    steps, rate, factor = int(e.number("steps")), e.number("correction"), e.number("auxiliary")
    alone = trained(steps, 0.0, 0.0)
    corrected, penalised = trained(steps, e.on(rate, 0.0), 0.0), trained(steps, 0.0, e.on(factor, 0.0))
    runs = (alone, corrected, penalised)
    ways, sources = list(map(say, WAYS)), list(map(say, SOURCES))
    experts = list(range(len(alone.loads)))
    loads = {way: run.loads for way, run in zip(ways, runs, strict=True)}
    yield LinePanel(say("exhibit.balance.loads", steps=steps), say("exhibit.balance.expert"), experts, loads)
    rows = [(way, source, r.overload, r.starved, r.loss) for way, source, r in zip(ways, sources, runs, strict=True)]
    yield TablePanel(say("exhibit.balance.table"), list(map(say, COLUMNS)), rows)
    least, most = min(alone.loads), max(alone.loads)
    yield e.claim("starve", alone.starved > 0, starved=alone.starved, experts=len(experts), least=least, most=most)
    evener = corrected.overload < alone.overload and corrected.starved < alone.starved
    without = {"experts": len(experts), "without": alone.overload}
    yield e.claim("correction", evener, starved=corrected.starved, fullest=corrected.overload, **without)
    evener = penalised.overload < alone.overload and penalised.starved < alone.starved
    yield e.claim("auxiliary", evener, starved=penalised.starved, fullest=penalised.overload, **without)


EXHIBIT = Exhibit(
    "balance",
    show,
    controls=(
        Control("steps", 120, (60, 120, 240)),
        Control("correction", 0.02, (0.005, 0.02, 0.05)),
        Control("auxiliary", 0.1, (0.01, 0.05, 0.1)),
    ),
    own=True,
)
