"""Without norms: the stream has other sizes from block to block, so have gradients on their way back, and no answer is left."""

from collections.abc import Iterator

from pellucid.analysis.depth_gradients import answer_of, depth_gradients, growth, norm_kept, one_less, times_apart
from pellucid.analysis.rows import likeness, mean_size, stream
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import LinePanel, Panel
from pellucid.messages import say

PROMPT = "The capital of France is"
UNLIKE = 1.25  # times that factors are apart which rounding does not explain


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
    token = answer_of(next(iter(runs.values())))
    slopes = {about: depth_gradients(model, e.text("prompt"), token) for about, model in zip(runs, (e.model, bare), strict=True)}
    across = list(next(iter(slopes.values())))
    lines = {about: list(one.values()) for about, one in slopes.items()}
    yield LinePanel(say("exhibit.norms.gradient"), say("exhibit.norms.at"), across, lines)
    plain, right = e.quality(), e.quality(bare)
    yield e.claim("answers", right.right < plain.right, right=right.right, plain=plain.right, of=plain.of)
    with_norms, without = (growth(one) for one in slopes.values())
    times = times_apart(with_norms, without)
    yield e.claim("gradient", times > UNLIKE, plain=with_norms, bare=without, times=times)
    rms, layer = (norm_kept(runs[say("exhibit.norms.with")], kind) for kind in ("rms", "layer"))
    yield e.claim("direction", e.same(one_less(rms.cosine)), rms=rms.cosine, layer=layer.cosine)
    yield e.claim("weights", rms.parameters < layer.parameters, rms=rms.parameters, layer=layer.parameters)


EXHIBIT = Exhibit("norms", show, controls=(Control("prompt", PROMPT),))
