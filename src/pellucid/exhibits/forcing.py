"""All positions at once: one pass over a text gives the loss of every token, as a pass for each would."""

from collections.abc import Iterator

from pellucid.analysis.position_losses import apart, in_one_pass, one_by_one
from pellucid.analysis.rows import mean
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import Panel, TablePanel
from pellucid.messages import say
from pellucid.runs.answers import piece_of, tokenizer_of, visible

TEXT = "The capital of France is Paris."


def show(e: Experiment) -> Iterator[Panel | Claim]:
    ids = e.model.ids(e.text("text"))
    once, each = in_one_pass(e.model, ids, causal=e.on(True, False)), one_by_one(e.model, ids)
    names = [visible(piece_of(tokenizer_of(e.model), i)) or str(i) for i in ids]
    columns = [say("exhibit.forcing.token"), say("exhibit.forcing.once"), say("exhibit.forcing.each")]
    yield TablePanel(say("exhibit.forcing.table"), columns, [*zip(names[1:], once.values, each.values, strict=True)])
    gap = apart(once, each)
    yield e.claim("equal", e.same(gap), losses=len(once.values), gap=gap)
    yield e.claim("rows", once.rows <= each.rows, rows=once.rows, passes=each.passes, all=each.rows)
    seeing = in_one_pass(e.model, ids, causal=False)
    yield e.claim("mask", e.differ(apart(seeing, each)), seeing=mean(seeing.values), plain=mean(each.values))


EXHIBIT = Exhibit("forcing", show, controls=(Control("text", TEXT, tokens=3),))
