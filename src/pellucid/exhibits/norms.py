"""Without norms: the stream grows from block to block, and no answer is left."""

from collections.abc import Iterator

from pellucid.analysis.rows import likeness, mean_size, stream
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import LinePanel, Panel
from pellucid.messages import say

PROMPT = "The capital of France is"


def show(e: Experiment) -> Iterator[Panel | Claim]:
    bare = e.variant({"norm": "none"})
    runs = {say("exhibit.norms.with"): e.trace(e.text("prompt")), say("exhibit.norms.without"): e.trace(e.text("prompt"), bare)}
    yield e.answers(say("exhibit.norms.answers"), runs)
    streams = {about: stream(run) for about, run in runs.items()}
    at = [s.path for s in next(iter(streams.values()))]
    sizes = {about: [mean_size(s.value) for s in records] for about, records in streams.items()}
    yield LinePanel(say("exhibit.norms.sizes"), say("exhibit.norms.at"), at, sizes)
    alike = {about: [likeness(s.value) for s in records] for about, records in streams.items()}
    yield LinePanel(say("exhibit.norms.likeness"), say("exhibit.norms.at"), at, alike)
    plain, right = e.quality(), e.quality(bare)
    yield e.claim("answers", right.right < plain.right, right=right.right, plain=plain.right, of=plain.of)


EXHIBIT = Exhibit("norms", show, controls=(Control("prompt", PROMPT),))
