"""Without the sums around each part: a block passes on only what it computed, and what it was given is lost."""

from collections.abc import Iterator

from pellucid.analysis.depth_gradients import answer_of, depth_gradients, growth, times_apart
from pellucid.analysis.rows import likeness, stream
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import LinePanel, Panel, TablePanel
from pellucid.messages import say

PROMPT = "The capital of France is"
UNLIKE = 1.25  # times that factors are apart which rounding does not explain


def show(e: Experiment) -> Iterator[Panel | Claim]:
    every, first = e.variant({"layers.*.order": "bare"}), e.variant({"layers.0.order": "bare"})
    models = {say("exhibit.residual.with"): e.model, say("exhibit.residual.first"): first, say("exhibit.residual.without"): every}
    runs = {about: e.trace(e.text("prompt"), model) for about, model in models.items()}
    yield e.answers(say("exhibit.residual.answers"), runs)
    streams = {about: stream(run) for about, run in runs.items()}
    at = [s.path for s in next(iter(streams.values()))]
    alike = {about: [likeness(s.value) for s in records] for about, records in streams.items()}
    yield LinePanel(say("exhibit.residual.likeness"), say("exhibit.residual.at"), at, alike)
    token = answer_of(next(iter(runs.values())))
    slopes = {about: depth_gradients(model, e.text("prompt"), token) for about, model in models.items()}
    across = list(next(iter(slopes.values())))
    lines = {about: list(one.values()) for about, one in slopes.items()}
    yield LinePanel(say("exhibit.residual.gradient"), say("exhibit.residual.at"), across, lines)
    right = {about: e.quality(model) for about, model in models.items()}
    columns = [say("exhibit.residual.model"), say("exhibit.residual.right")]
    yield TablePanel(say("exhibit.residual.table"), columns, [(about, one.right) for about, one in right.items()])
    plain, one, none = right.values()
    if plain.right:
        yield e.claim("answers", none.right < plain.right, right=none.right, plain=plain.right, of=plain.of)
        if one.right > none.right:
            counts = {"right": one.right, "of": plain.of}
            yield e.claim("first", e.differ(one.moved(plain)), loss=one.loss, own=plain.loss, **counts)
        else:
            yield e.claim("each", one.right < plain.right, right=one.right, plain=plain.right, of=plain.of)
    else:
        yield e.claim("unable", none.right <= plain.right, right=plain.right, of=plain.of, model=e.model.name)
    with_sums, _, without = (growth(slope) for slope in slopes.values())
    times = times_apart(with_sums, without)
    yield e.claim("gradient", times > UNLIKE, plain=with_sums, bare=without, times=times)


EXHIBIT = Exhibit("residual", show, controls=(Control("prompt", PROMPT),))
