"""Choosing experts: scores, a correction that only chooses, groups, and shares that sum to a fixed scale."""

from collections.abc import Iterator

from pellucid.analysis.expert_scores import choices_changed, corrected, score_cell, scores, share_gap, sparse, sum_gap
from pellucid.api.count import described
from pellucid.config import Config
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment, causal
from pellucid.exhibits.panel import Panel, TablePanel, TensorPlace, TextPanel
from pellucid.messages import say

PROMPT = "The capital of France is"
LARGE = "deepseek-v3"
SCALE = 2.5  # of DeepSeek-V3


def show(e: Experiment) -> Iterator[Panel | Claim]:
    prompt, block = e.text("prompt"), sparse(e.model.config)[0]
    lines = "exhibit.routing.score", "exhibit.routing.choice", "exhibit.routing.share", "exhibit.routing.output"
    yield TextPanel(say("exhibit.routing.equations"), list(map(say, lines)))
    run, again = e.trace(prompt), e.trace(prompt)
    heads = "exhibit.routing.expert", "exhibit.routing.group", "exhibit.routing.affinity", "exhibit.routing.ranked", "exhibit.routing.part"
    rows = [(str(s.expert), s.group, s.affinity, s.ranked, s.share) for s in scores(run, block)]
    names = (2, "affinity"), (3, "corrected")
    places = {(s.expert, at): TensorPlace(*score_cell(run, block, name, s.expert)) for s in scores(run, block) for at, name in names}
    yield TablePanel(say("exhibit.routing.table", path=f"layers.{block}.ffn"), list(map(say, heads)), rows, tinted=(2, 3), places=places)
    repeated, of = choices_changed(run, again)
    yield e.claim("again", repeated == 0, same=of)
    gap, wrong = share_gap(run, e.on("affinity", "corrected")), share_gap(run, "corrected")
    yield e.claim("shares", e.same(gap) and e.differ(wrong), gap=gap, corrected=wrong)
    free, apart = e.variant({"layers.*.ffn.corrected": False}), e.variant({"layers.*.ffn.groups": 1, "layers.*.ffn.groups_chosen": 1})
    chosen, changed = choices_changed(run, e.trace(prompt, free))[0], choices_changed(run, e.trace(prompt, apart))[0]
    plain, right, open_groups = e.quality(), e.quality(free), e.quality(apart)
    table = [
        (say("exhibit.routing.plain"), 0, plain.right),
        (say("exhibit.routing.free"), chosen, right.right),
        (say("exhibit.routing.apart"), changed, open_groups.right),
    ]
    columns = [say("exhibit.routing.case"), say("exhibit.routing.changed", of=of), say("exhibit.routing.right", of=plain.of)]
    yield TablePanel(say("exhibit.routing.switched"), columns, table)
    yield e.claim("switched", chosen > 0 or changed > 0, free=chosen, apart=changed, of=of)
    total = sum_gap(e.trace(prompt, e.variant({"layers.*.ffn.scale": SCALE})), SCALE)
    yield e.claim("scale", e.same(total), scale=SCALE, gap=total)
    _, large = described(LARGE)
    dense = [layer for layer in large.layers if not layer.ffn.experts]
    yield e.claim("dense", 0 < len(dense) < len(large.layers), dense=len(dense), layers=len(large.layers))


def fits(cfg: Config) -> bool:
    """True for a generator whose experts are chosen with a correction, and whose shares are divided by their sum."""
    return causal(cfg) and bool(sparse(cfg)) and all(corrected(cfg, block) for block in sparse(cfg))


EXHIBIT = Exhibit("routing", show, "pellucid/capitals-deepseek", (Control("prompt", PROMPT),), fits)
