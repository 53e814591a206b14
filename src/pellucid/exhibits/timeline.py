"""A timeline of language models: four eras, the catalogue year by year, and as a tree."""

from collections.abc import Iterator

from pellucid.analysis.releases import Branch, branches, by_year, releases
from pellucid.exhibits.exhibit import Claim, Exhibit, Experiment
from pellucid.exhibits.panel import Box, DiagramPanel, Panel, TablePanel
from pellucid.messages import say

ERAS = (  # arXiv 2303.18223 names them
    ("1951", "exhibit.timeline.era.counts", "exhibit.timeline.era.counts.is", "doi.org/10.1002/j.1538-7305.1951.tb01366.x"),
    ("2003", "exhibit.timeline.era.neural", "exhibit.timeline.era.neural.is", "jmlr.org/papers/v3/bengio03a.html"),
    ("2018", "exhibit.timeline.era.pretrained", "exhibit.timeline.era.pretrained.is", "arXiv 1810.04805"),
    ("2020", "exhibit.timeline.era.large", "exhibit.timeline.era.large.is", "arXiv 2005.14165"),
)


def show(e: Experiment) -> Iterator[Panel | Claim]:
    models = releases()
    years = by_year(models)
    columns = [say("exhibit.timeline.from"), say("exhibit.timeline.era"), say("exhibit.timeline.new"), say("exhibit.timeline.source")]
    eras = list(map(say, (era for _, era, _, _ in ERAS)))
    texts = list(map(say, (new for _, _, new, _ in ERAS)))
    rows = [(year, era, new, source) for (year, _, _, source), era, new in zip(ERAS, eras, texts, strict=True)]
    yield TablePanel(say("exhibit.timeline.eras"), columns, rows)
    columns = [say("exhibit.timeline.year"), say("exhibit.timeline.models"), say("exhibit.timeline.sparse"), say("exhibit.timeline.kinds")]
    yield TablePanel(say("exhibit.timeline.years"), columns, [(y.year, len(y.models), y.sparse, y.kinds) for y in years])
    stacks = {
        "encoder": say("exhibit.timeline.encoder"),
        "both": say("exhibit.timeline.both"),
        "decoder": say("exhibit.timeline.decoder"),
    }
    tree = {about: list(boxes(branches(models, kind, 1))) for kind, about in stacks.items()}
    yield DiagramPanel(say("exhibit.timeline.tree"), tree)
    first, last = years[0], e.on(years[-1], years[0])
    yield e.claim("sparse", first.sparse == 0 < last.sparse, year=last.year, sparse=last.sparse, of=last.disclosed, first=first.year)
    public = [m for m in models if m.year == e.on(last.year, first.year) and m.disclosed]
    alone = [m for m in public if m.stacks == "decoder"]
    yield e.claim("decoders", len(alone) == len(public), alone=len(alone), of=len(public), year=last.year, first=first.year)


def boxes(of: list[Branch]) -> Iterator[Box]:
    """Yield a box for each year with its first name; a year with experts is marked."""
    for one in of:
        yield Box(one.year, say("exhibit.timeline.count", first=one.first[0], count=one.count), 0, one.sparse)


EXHIBIT = Exhibit("timeline", show, own=True)
