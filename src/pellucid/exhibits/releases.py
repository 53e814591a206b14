"""Every release of the catalogue, a year at a time, and what is reported of models whose makers published no architecture."""

from collections.abc import Iterator

from pellucid.analysis.releases import by_year, in_columns, releases, years
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import Panel, TablePanel
from pellucid.messages import say

SHOWN = "2023"  # first: the year of GPT-4
ROWS = 18  # of a column


def show(e: Experiment) -> Iterator[Panel | Claim]:
    models = releases()
    own = next(y.models for y in by_year(models) if y.year == e.text("year"))
    closed = say("exhibit.releases.closed")
    columns = [say("exhibit.releases.month"), say("exhibit.releases.model"), say("exhibit.releases.by"), say("exhibit.releases.attention")]
    for those in in_columns(own, ROWS):
        rows = [(m.month, m.name, m.organisation, m.attention or closed) for m in those]
        yield TablePanel(say("exhibit.releases.table", first=those[0].date, last=those[-1].date), columns, rows)
    columns = [say("exhibit.releases.model"), say("exhibit.releases.statement"), say("exhibit.releases.status")]
    stated = [(m.name, one.text, one.status) for m in own for one in m.statements if one.unconfirmed]
    if stated:
        yield TablePanel(say("exhibit.releases.statements"), columns, stated)
    dark = [m for m in models if e.on(not m.disclosed, False)]
    statements, unconfirmed = [one for m in dark for one in m.statements], [one for m in dark for one in m.statements if one.unconfirmed]
    numbers = {"models": len(models), "closed": len(dark), "statements": len(statements), "unconfirmed": len(unconfirmed)}
    yield e.claim("undisclosed", 0 < len(unconfirmed) < len(statements), **numbers)


EXHIBIT = Exhibit("releases", show, controls=(Control("year", SHOWN, years()),), own=True)
