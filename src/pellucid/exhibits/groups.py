"""What a correction and groups decide: the way of each token to its experts, and the choices without the one or the other."""

from collections.abc import Iterator

from pellucid.analysis.expert_equations import Route, route
from pellucid.analysis.expert_scores import choices_changed, grouping, sparse
from pellucid.analysis.mask_leak import token_names
from pellucid.analysis.needs import ROUTED
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import Box, DiagramPanel, Panel, TablePanel
from pellucid.messages import say

PROMPT = "The capital of France is"
LARGE = "deepseek-v3"
TOKENS = 4  # that have a way drawn, the last; as many stand side by side on a screen


def show(e: Experiment) -> Iterator[Panel | Claim]:
    prompt, block = e.text("prompt"), sparse(e.model.config)[0]
    run = e.trace(prompt)
    width = str(e.model.config.width)
    ways = {f"{row}: {name}": boxes(route(run, block, row), width) for row, name in [*enumerate(token_names(run))][-TOKENS:]}
    yield DiagramPanel(say("exhibit.groups.ways", path=f"layers.{block}.ffn"), ways)
    free, apart = e.variant({"layers.*.ffn.corrected": False}), e.variant({"layers.*.ffn.groups": 1, "layers.*.ffn.groups_chosen": 1})
    (freed, of), (changed, _) = choices_changed(run, e.trace(prompt, free)), choices_changed(run, e.trace(prompt, apart))
    plain, right, open_groups = e.quality(), e.quality(free), e.quality(apart)
    table = [
        (say("exhibit.groups.plain"), 0, plain.right),
        (say("exhibit.groups.free"), freed, right.right),
        (say("exhibit.groups.apart"), changed, open_groups.right),
    ]
    columns = [say("exhibit.groups.case"), say("exhibit.groups.changed", of=of), say("exhibit.groups.right", of=plain.of)]
    yield TablePanel(say("exhibit.groups.switched"), columns, table)
    yield e.claim("switched", freed > 0 or changed > 0, free=freed, apart=changed, of=of)
    large = grouping(LARGE)
    numbers = {"experts": large.experts, "groups": large.groups, "opened": large.groups_chosen, "chosen": large.chosen}
    yield e.claim("large", large.groups_chosen < large.groups, **numbers)


def boxes(way: Route, width: str) -> list[Box]:
    """Return a row's way as boxes: the open groups with their experts, the chosen ones marked with their shares. width: of a row."""
    out = [Box("u", width)]
    for group, experts in way.groups.items():
        out.append(Box(say("exhibit.groups.opened", group=group)))
        for n in experts:
            share = way.shares.get(n)
            out.append(Box(say("exhibit.groups.one", expert=n), "" if share is None else f"{share:.3f}", 1, share is not None))
    return [*out, Box(say("exhibit.groups.common")), Box("y", width)]


EXHIBIT = Exhibit("groups", show, "pellucid/capitals-deepseek", (Control("prompt", PROMPT),), ROUTED)
