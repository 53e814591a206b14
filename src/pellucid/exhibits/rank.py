"""Thinner matrices: a feed-forward part as products of two thin matrices, down to the rank at which its answers are lost."""

from collections.abc import Iterator

from pellucid.analysis.needs import DENSE, GENERATOR
from pellucid.analysis.thin import loss, singular_values
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import LinePanel, Panel, TablePanel
from pellucid.messages import say

PATH = "layers.0.ffn.up"
RANKS = (64, 32, 16, 8)
MATRICES = "layers.*.ffn.up", "layers.*.ffn.down"


def show(e: Experiment) -> Iterator[Panel | Claim]:
    values = singular_values(e.model, PATH)
    yield LinePanel(say("exhibit.rank.values"), say("exhibit.rank.number"), list(range(0, len(values), 8)), {PATH: values[::8]})
    own = int(e.number("rank"))
    ranks = sorted({*RANKS, own}, reverse=True)
    models = {rank: e.variant({f"{path}.rank": rank for path in MATRICES}) for rank in ranks}
    losses = {rank: loss(e.model, model, PATH, values, rank) for rank, model in models.items()}
    right, plain = {rank: e.quality(model) for rank, model in models.items()}, e.quality()
    heads = "exhibit.rank.rank", "exhibit.rank.right", "exhibit.rank.numbers", "exhibit.rank.error", "exhibit.rank.dropped"
    rows = [(str(rank), right[rank].right, one.numbers, one.error, one.dropped) for rank, one in losses.items()]
    yield TablePanel(say("exhibit.rank.table", path=PATH), list(map(say, heads)), rows, ranks.index(own))
    gap, chosen, thinnest = max(one.gap for one in losses.values()), losses[own], ranks[-1]
    yield e.claim("error", e.same(gap), gap=gap, path=PATH)
    numbers = {"rank": own, "right": right[own].right, "of": plain.of, "share": chosen.share}
    if not plain.right:
        yield e.claim("unable", right[thinnest].right <= plain.right, right=plain.right, of=plain.of, model=e.model.name)
        return
    if own != thinnest:  # of that one the next claim speaks
        yield e.claim("answers", right[own].right > right[thinnest].right, **numbers)
    yield e.claim("lost", right[thinnest].right < plain.right, rank=thinnest, right=right[thinnest].right, plain=plain.right)


EXHIBIT = Exhibit("rank", show, controls=(Control("rank", 32, RANKS),), needs=(*GENERATOR, DENSE))
