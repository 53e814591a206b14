"""Each token alone: the feed-forward part computes a row from that row, attention from the rows before it too."""

from collections.abc import Iterator

from pellucid.analysis.independence import alone_gaps, largest_beside, reads, row_gaps
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import Panel, TablePanel
from pellucid.messages import say
from pellucid.runs.answers import visible

PROMPT = "The capital of France is"
ATTN, FFN = "layers.0.attn", "layers.0.ffn"
CHANGED = 1  # the row that is doubled


def show(e: Experiment) -> Iterator[Panel | Claim]:
    prompt = e.text("prompt")
    plain = e.trace(prompt)
    moved = {part: e.trace(prompt, changes=[f"{reads(plain, part)}[T={CHANGED}] *= 2"]) for part in (FFN, ATTN)}
    gaps = {part: row_gaps(plain.all(part)[0].value, run.all(part)[0].value) for part, run in moved.items()}
    pieces = [visible(p) for p in e.model.tokenizer.pieces(plain.ids)]
    columns = [say("exhibit.rows.row"), FFN, ATTN]
    yield TablePanel(say("exhibit.rows.neighbour"), columns, list(zip(pieces, gaps[FFN], gaps[ATTN], strict=True)), CHANGED, tinted=(1, 2))
    alone = {part: alone_gaps(plain, part) for part in (FFN, ATTN)}
    yield TablePanel(say("exhibit.rows.alone"), columns, list(zip(pieces, alone[FFN], alone[ATTN], strict=True)), tinted=(1, 2))
    ffn, attn = (largest_beside(gaps[part], CHANGED) for part in (FFN, ATTN))
    yield e.claim("ffn", e.same(ffn) and e.differ(gaps[FFN][CHANGED]), gap=ffn, own=gaps[FFN][CHANGED])
    yield e.claim("attn", e.differ(attn), gap=attn)
    yield e.claim("alone", e.same(max(alone[FFN])) and e.differ(max(alone[ATTN])), ffn=max(alone[FFN]), attn=max(alone[ATTN]))


EXHIBIT = Exhibit("rows", show, controls=(Control("prompt", PROMPT, tokens=2),))
