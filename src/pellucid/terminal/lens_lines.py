"""The logit lens as lines of a terminal: a row for each block, its likeliest tokens, and the place of the followed one."""

from rich.text import Text

from pellucid.documents.lens import ReadDocument
from pellucid.documents.number import number, percent
from pellucid.documents.run import CandidateDocument
from pellucid.messages import say
from pellucid.terminal.table import Cell, Column, clipped, prose, table

TITLE, DIM, NAME = "bold", "dim", "cyan"


def lens_lines(d: ReadDocument, width: int) -> list[Text]:
    """Write the lens of one row. The followed token is bold wherever it stands."""
    piece = d["layers"][-1]["followed"]["piece"] or str(d["id"])
    out = [*prose(say("lens.title", model=d["model"], row=d["row"], piece=d["piece"]), width, TITLE), Text()]
    best = len(d["layers"][0]["candidates"])
    titles = [say("page.lens.from"), say("page.lens.rank", piece=piece), "logit", *map(str, range(1, best + 1))]
    rows: list[list[Cell]] = [[Text(t, DIM) for t in titles]]
    for layer in d["layers"]:
        logit = layer["followed"]["logit"]
        shown = [candidate(c, d["id"]) if logit is not None else Text("") for c in layer["candidates"]]
        rows.append([layer["path"], "" if logit is None else str(layer["rank"]), "NaN" if logit is None else number(logit), *shown])
    columns = [Column(style=NAME), Column(">"), Column(">"), *[Column(most=24)] * best]
    end = [] if d["nan"] is None else [Text(), *prose(say("run.nan", path=d["nan"], step=0), width, TITLE)]
    return clipped([*out, *table(rows, columns), *end], width)


def candidate(c: CandidateDocument, followed: int) -> Text:
    """Write a candidate with its share."""
    share = "" if c["probability"] is None else f" {percent(c['probability'])}"
    return Text.assemble((c["piece"] or str(c["id"]), TITLE if c["id"] == followed else ""), (share, DIM))
