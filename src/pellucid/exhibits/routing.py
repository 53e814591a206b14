"""Choosing experts: four equations, the same choice each time, and shares that the correction does not enter."""

from collections.abc import Iterator

from pellucid.analysis.expert_equations import SYMBOLS, equations
from pellucid.analysis.expert_scores import choices_changed, score_cell, scores, share_gap, sparse, sum_gap
from pellucid.analysis.mask_leak import token_names
from pellucid.analysis.needs import ROUTED
from pellucid.api.count import described
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import MatrixPanel, Panel, TablePanel, TensorPlace, column_places
from pellucid.messages import say

PROMPT = "The capital of France is"
LARGE = "deepseek-v3"
SCALE = 2.5  # of DeepSeek-V3
CHANNELS = 12  # that are drawn of a symbol's rows


def show(e: Experiment) -> Iterator[Panel | Claim]:
    prompt, block = e.text("prompt"), sparse(e.model.config)[0]
    run, again = e.trace(prompt), e.trace(prompt)
    four = equations(run, block)
    texts = {
        "s": say("exhibit.routing.score"),
        "e": say("exhibit.routing.choice"),
        "g": say("exhibit.routing.share"),
        "y": say("exhibit.routing.output"),
    }
    parts = (
        "exhibit.routing.equation",
        "exhibit.routing.tensor",
        "exhibit.routing.shape",
        "exhibit.routing.weight",
        "exhibit.routing.gap",
    )
    chosen = SYMBOLS.index(e.text("symbol"))
    lines = [(texts[q.symbol], q.path, f"{q.dims} = {q.shape}", q.matrix, q.gap) for q in four]
    places = column_places(1, [q.path for q in four])
    yield TablePanel(say("exhibit.routing.equations"), list(map(say, parts)), lines, chosen, places=places)
    most = max(q.gap for q in four if e.exact or q.symbol != "y")
    yield e.claim("equations", e.same(most), count=len(four), gap=most)
    one = four[chosen]
    cells = one.rows(CHANNELS)
    title, numbers = say("exhibit.routing.numbers", symbol=one.symbol), [str(n) for n in range(len(cells[0]))]
    yield MatrixPanel(title, token_names(run), numbers, cells, one.path, cell=(0, "row", "column"))
    heads = "exhibit.routing.expert", "exhibit.routing.group", "exhibit.routing.affinity", "exhibit.routing.ranked", "exhibit.routing.part"
    rows = [(str(s.expert), s.group, s.affinity, s.ranked, s.share) for s in scores(run, block)]
    names = (2, "affinity"), (3, "corrected")
    cells_at = {(s.expert, at): TensorPlace(*score_cell(run, block, name, s.expert)) for s in scores(run, block) for at, name in names}
    yield TablePanel(say("exhibit.routing.table", path=f"layers.{block}.ffn"), list(map(say, heads)), rows, tinted=(2, 3), places=cells_at)
    repeated, of = choices_changed(run, again)
    yield e.claim("again", repeated == 0, same=of)
    gap, wrong = share_gap(run, e.on("affinity", "corrected")), share_gap(run, "corrected")
    yield e.claim("shares", e.same(gap) and e.differ(wrong), gap=gap, corrected=wrong)
    total = sum_gap(e.trace(prompt, e.variant({"layers.*.ffn.scale": SCALE})), SCALE)
    yield e.claim("scale", e.same(total), scale=SCALE, gap=total)
    _, large = described(LARGE)
    dense = [layer for layer in large.layers if not layer.ffn.experts]
    yield e.claim("dense", 0 < len(dense) < len(large.layers), dense=len(dense), layers=len(large.layers))


CONTROLS = (Control("prompt", PROMPT), Control("symbol", "s", SYMBOLS))
EXHIBIT = Exhibit("routing", show, "pellucid/capitals-deepseek", CONTROLS, ROUTED)
