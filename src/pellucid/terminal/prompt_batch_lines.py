"""Several prompts in one batch as lines of a terminal: the rows that ran, the padded table, and each answer."""

from rich.text import Text

from pellucid.analysis.ragged_batch import PAD, left_padded
from pellucid.documents.number import number, percent
from pellucid.documents.prompt_batch import PromptBatchDocument
from pellucid.messages import say
from pellucid.terminal.sparkline import bar
from pellucid.terminal.table import Cell, Column, clipped, prose, table

TITLE, DIM, NAME = "bold", "dim", "cyan"
BAR, PIECE = 16, 14  # characters of a full bar, and of a piece in the table


def prompt_batch_lines(d: PromptBatchDocument, width: int) -> list[Text]:
    """Write a batch."""
    longest, count = len(d["padded"][0]), len(d["prompts"])
    padding = longest * count - d["rows"]
    out = prose(say("batch.ran", model=d["model"], prompts=count, rows=d["rows"]), width, TITLE)
    places = [f"{p['first']} … {p['first'] + len(p['ids']) - 1}" for p in d["prompts"]]
    ran: list[list[Cell]] = [[str(n), at, " ".join(p["pieces"])] for n, (p, at) in enumerate(zip(d["prompts"], places, strict=True), 1)]
    titles: list[Cell] = [Text(title, DIM) for title in (say("batch.prompt"), say("batch.rows"), say("batch.pieces"))]
    out += [*table([titles, *ran], [Column(">"), Column(">"), Column(style=NAME)]), Text()]
    out += prose(say("batch.padded", prompts=count, longest=longest, all=longest * count, padding=padding), width, TITLE)
    pieces = left_padded([p["pieces"] for p in d["prompts"]], PAD)
    grid: list[list[Cell]] = [[str(n), *own] for n, own in enumerate(pieces, 1)]
    heads: list[Cell] = ["", *(Text(str(i), DIM) for i in range(longest))]
    out += [*table([heads, *grid], [Column(">"), *[Column(most=PIECE)] * longest], gap=1), Text()]
    out += prose(say("batch.answers"), width, TITLE)
    for n, p in enumerate(d["prompts"], 1):
        cells: list[list[Cell]] = [
            [c["piece"] or str(c["id"]), percent(c["probability"] or 0.0), bar(c["probability"] or 0.0, BAR)] for c in p["candidates"]
        ]
        gaps = say("batch.apart", gap=number(p["gap"] or 0.0), padded=number(p["padded_gap"] or 0.0))
        out += [
            Text.assemble((f" {n}  ", ""), (gaps, DIM)),
            *table(cells, [Column(most=width // 3, style=NAME), Column(">"), Column()], indent=4),
        ]
    return clipped(out, width)
