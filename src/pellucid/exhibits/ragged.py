"""Nothing is padded: prompts of unequal length run as the rows that they have, and a mask makes padding harmless where there is any."""

from collections.abc import Iterator

from pellucid.analysis.needs import UNPADDED
from pellucid.analysis.ragged_batch import alone, apart, in_engine, padded, padded_pieces, present, window_rows
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import Panel, TablePanel
from pellucid.messages import say

BETWEEN = " / "
PROMPTS = BETWEEN.join(("France", "The capital of France is", "The name of the capital city of Japan is"))
COLUMNS = "exhibit.ragged.way", "exhibit.ragged.rows", "exhibit.ragged.gap"


def show(e: Experiment) -> Iterator[Panel | Claim]:
    texts = e.text("prompts").split(BETWEEN)
    answers = e.answers(say("exhibit.ragged.answers"), {text: e.trace(text) for text in texts})
    prompts = [e.model.ids(text) for text in texts]
    tokens, (window, full) = present(prompts), window_rows(e.model, prompts)
    single, engine, bare = alone(e.model, prompts), in_engine(e.model, prompts), padded(e.model, prompts, masked=False)
    masked = padded(e.model, prompts, masked=e.on(True, False))
    ways = {
        say("exhibit.ragged.alone"): single,
        say("exhibit.ragged.engine"): engine,
        say("exhibit.ragged.masked"): masked,
        say("exhibit.ragged.bare"): bare,
    }
    grid = padded_pieces(e.model, prompts)
    places = [str(n) for n in range(len(grid[0]))]
    yield TablePanel(say("exhibit.ragged.grid", rows=masked.rows), ["", *places], [(str(n), *own) for n, own in enumerate(grid, 1)])
    yield TablePanel(
        say("exhibit.ragged.table"), list(map(say, COLUMNS)), [(way, own.rows, apart(own, single)) for way, own in ways.items()]
    )
    yield e.claim("rows", engine.rows == tokens, rows=engine.rows, tokens=tokens)
    yield answers
    gaps = [apart(own, single) for own in (engine, masked)]
    yield e.claim("same", e.same(max(gaps)), engine=gaps[0], masked=gaps[1])
    dropped = apart(bare, single)
    padding = masked.rows > tokens  # none where all prompts are equally long
    yield e.claim("mask", e.differ(dropped) or not padding, gap=dropped)
    yield e.claim("window", engine.rows <= masked.rows <= full, padded=masked.rows, window=window, full=full, rows=engine.rows)


EXHIBIT = Exhibit("ragged", show, controls=(Control("prompts", PROMPTS),), needs=UNPADDED)
