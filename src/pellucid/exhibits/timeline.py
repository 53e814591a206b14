"""A timeline of the catalogue: every release, with what its makers disclosed."""

from collections.abc import Iterator

from pellucid.analysis.releases import by_year, releases
from pellucid.exhibits.exhibit import Claim, Exhibit, Experiment
from pellucid.exhibits.panel import Panel, TablePanel
from pellucid.messages import say


def show(e: Experiment) -> Iterator[Panel | Claim]:
    models = releases()
    years = by_year(models)
    columns = [say("exhibit.timeline.year"), say("exhibit.timeline.models"), say("exhibit.timeline.sparse"), say("exhibit.timeline.kinds")]
    yield TablePanel(say("exhibit.timeline.years"), columns, [(y.year, len(y.models), y.sparse, y.kinds) for y in years])
    columns = [say("exhibit.timeline.date"), say("exhibit.timeline.model"), say("exhibit.timeline.by"), say("exhibit.timeline.attention")]
    rows = [(m.date, m.name, m.organisation, m.attention or say("exhibit.timeline.undisclosed")) for m in models]
    yield TablePanel(say("exhibit.timeline.table"), columns, rows)
    first, last = years[0], e.on(years[-1], years[0])
    yield e.claim("sparse", first.sparse == 0 < last.sparse, year=last.year, sparse=last.sparse, of=last.disclosed, first=first.year)
    closed = [m for m in models if not m.disclosed]
    statements, unconfirmed = sum(m.statements for m in closed), sum(m.unconfirmed for m in closed)
    numbers = {"models": len(models), "closed": len(closed), "statements": statements, "unconfirmed": unconfirmed}
    yield e.claim("undisclosed", len(closed) > 0 and 0 < unconfirmed < statements, **numbers)


EXHIBIT = Exhibit("timeline", show)
