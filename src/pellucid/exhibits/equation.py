"""Each symbol, its matrix: a head scores two rows by one matrix, and attention writes its sum to the rows of this run."""

from collections.abc import Iterator

from pellucid.analysis.bilinear import embedding_gap, last_row, moves, score_gap, score_matrix, sum_gap, weighted_sum
from pellucid.analysis.mask_leak import token_names
from pellucid.analysis.needs import BILINEAR
from pellucid.analysis.split_heads import shape
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import Panel, PlanePanel, Point, TablePanel, TensorPlace, column_places, way
from pellucid.messages import say

PROMPT, HEAD = "The capital of France is", 2
PARTS = {
    "X": "layers.0.attn_norm",
    "Q": "layers.0.attn.q",
    "K": "layers.0.attn.k",
    "V": "layers.0.attn.v",
    "Q·Kᵀ / √d": "layers.0.attn.scores",
    "softmax": "layers.0.attn.pattern",
    "softmax · V": "layers.0.attn.z",
    "· W_O": "layers.0.attn",
}


def show(e: Experiment) -> Iterator[Panel | Claim]:
    run = e.trace(e.text("prompt"))
    columns = [say("exhibit.equation.symbol"), say("exhibit.equation.tensor"), say("exhibit.equation.shape")]
    rows = [(symbol, path, f"{run[path].dims}  {shape(run[path].value)}") for symbol, path in PARTS.items()]
    yield TablePanel(say("exhibit.equation.table"), columns, rows, places=column_places(1, [*PARTS.values()]))
    other, matrix = score_matrix(run, 1), score_matrix(run, 0)
    gap, wrong = score_gap(run, 0, e.on(matrix, other)), score_gap(run, 0, other)
    before, after, share = moves(run)
    names = token_names(run)
    points = [Point(name, a[0], a[1], (b[0], b[1])) for name, a, b in zip(names, before.tolist(), after.tolist(), strict=True)]
    axes = (say("exhibit.equation.first"), say("exhibit.equation.second"))
    yield PlanePanel(say("exhibit.equation.plane", share=share), *axes, points)
    yield e.claim("matrix", e.same(gap), gap=gap, shape=shape(matrix))
    yield e.claim("own", e.differ(wrong), gap=wrong)
    head = int(e.number("head"))
    steps, wrong_sum = weighted_sum(run, head, head), weighted_sum(run, head, e.on(1 if head == 0 else 0, head))
    title = say("exhibit.equation.sum", head=head, word=names[-1], share=steps.share)
    yield PlanePanel(title, *axes, way(["0", *names], steps.places))
    keys = [*zip(names, steps.angles, steps.scores, steps.weights, strict=True)]
    kinds = (2, "layers.0.attn.scores"), (3, "layers.0.attn.pattern")
    places = {(n, at): TensorPlace(path, last_row(run, head, n)) for n, _ in enumerate(names) for at, path in kinds}
    columns = [say("exhibit.equation.key"), say("exhibit.equation.angle"), say("exhibit.equation.score"), say("exhibit.equation.weight")]
    yield TablePanel(say("exhibit.equation.keys", head=head, word=names[-1]), columns, keys, tinted=(3,), places=places)
    yield e.claim("sum", e.same(steps.gap) and e.differ(wrong_sum.gap), head=head, gap=steps.gap, other=wrong_sum.gap)
    added = sum_gap(run)
    yield e.claim("added", e.same(added), gap=added)
    table = embedding_gap(e.model, run.ids)
    yield e.claim("table", table == 0, gap=table)


EXHIBIT = Exhibit("equation", show, controls=(Control("prompt", PROMPT, tokens=2), Control("head", HEAD, (0, 1, 2, 3))), needs=BILINEAR)
