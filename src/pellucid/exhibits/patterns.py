"""A map for every head: each has a slice of its own of W_Q and W_K, out of one width, so their number costs nothing."""

from collections.abc import Iterator

from pellucid.analysis.mask_leak import token_names
from pellucid.analysis.needs import CAUSAL_HEADS
from pellucid.analysis.split_heads import head_gap, head_slice, parameters, shape, with_one_map
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import MatrixPanel, Panel, TablePanel
from pellucid.messages import say

PROMPT = "The capital of France is"
MAPS = 8  # heads whose maps are drawn
WIDE, COUNTS = 512, (1, 2, 4, 8, 64)


def show(e: Experiment) -> Iterator[Panel | Claim]:
    run = e.trace(e.text("prompt"))
    pattern = next(s for s in run if s.path.endswith(".attn.pattern"))
    names = token_names(run)
    for head, values in enumerate(pattern.value[0, :MAPS].tolist()):
        yield MatrixPanel(say("exhibit.patterns.map", head=head), names, names, values, pattern.path, "share", (0, head, "row", "column"))
    counts = {n: parameters(WIDE, n) for n in COUNTS}
    columns = [say("exhibit.patterns.heads"), say("exhibit.patterns.slice"), say("exhibit.patterns.parameters")]
    yield TablePanel(say("exhibit.patterns.table"), columns, [(str(n), head_slice(WIDE, n), count) for n, count in counts.items()])
    gap = head_gap(pattern.value)
    yield e.claim("maps", e.differ(gap), shape=shape(pattern.value[0]), gap=gap)
    plain = e.quality()
    shared = e.on(with_one_map(e.model), plain)
    numbers = {"right": shared.right, "of": plain.of}
    if plain.right:
        yield e.claim("shared", shared.right < plain.right, plain=plain.right, **numbers)
    else:
        yield e.claim("unable", shared.right <= plain.right, model=e.model.name, **numbers)
    yield e.claim("count", len({*counts.values()}) == 1, width=WIDE, count=counts[COUNTS[0]], most=COUNTS[-1])


EXHIBIT = Exhibit("patterns", show, controls=(Control("prompt", PROMPT, tokens=2),), needs=CAUSAL_HEADS)
