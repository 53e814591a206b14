"""Source once, read often: an encoder runs in the first step alone, and every token written reads what was kept of its rows."""

from collections.abc import Iterator

from pellucid.analysis.mask_leak import token_names
from pellucid.analysis.needs import READS_A_SOURCE
from pellucid.analysis.source_reading import encoded_again, logit_gap, read_weights, row_gap, source_steps, times_as_much
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import MatrixPanel, Panel, TablePanel
from pellucid.messages import say
from pellucid.runs.answers import piece_of, visible

TEXT, MOST = "The capital of France is", 8  # tokens of the translation at most
COLUMNS = (
    "exhibit.translation.token",
    "exhibit.translation.encoder",
    "exhibit.translation.decoder",
    "exhibit.translation.kept",
    "exhibit.translation.read",
    "exhibit.translation.again",
)


def show(e: Experiment) -> Iterator[Panel | Claim]:
    run = e.trace(e.text("prompt"), steps=MOST)
    repeated = encoded_again(e.model, run)
    anew = source_steps(repeated)
    kept = e.on(source_steps(run), anew)
    written = [visible(piece_of(e.model.tokenizer, i)) or str(i) for i in run.new]
    yield MatrixPanel(say("exhibit.translation.weights"), written, token_names(run), read_weights(run), "", "share")
    rows = [(w, a.encoder, a.decoder, a.kept, a.read, b.encoder) for w, a, b in zip(written, kept, anew, strict=True)]
    yield TablePanel(say("exhibit.translation.table"), list(map(say, COLUMNS)), rows)
    first, *rest = kept
    later, added = sum(s.encoder for s in rest), sum(s.kept for s in rest)
    yield e.claim("once", first.encoder > 0 and later == 0, first=first.encoder, steps=len(rest), later=later)
    reads = rest[-1].read if rest else first.read
    yield e.claim("kept", added == 0 and reads == first.kept, bytes=first.kept, added=added)
    gap, rows_moved = logit_gap(run, repeated), row_gap(repeated)
    yield e.claim("same", e.same(gap) and e.same(rows_moved), rows=rows_moved, gap=gap, times=times_as_much(kept, anew))


EXHIBIT = Exhibit("translation", show, "pellucid/capitals-t5", (Control("prompt", TEXT),), (READS_A_SOURCE,))
