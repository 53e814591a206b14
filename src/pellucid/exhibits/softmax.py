"""From scores to shares: each logit's exponential over the sum of all, a temperature, and the bias of a head."""

from collections.abc import Iterator

from pellucid.analysis.catalogue import biases
from pellucid.analysis.rows import largest_gap
from pellucid.analysis.softmax_shares import entropy_at, logit_cell, order_kept, share_gap, shifted_gap, softmax_table
from pellucid.exhibits.exhibit import BEST, Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import LinePanel, Panel, TablePanel, TensorPlace
from pellucid.messages import say
from pellucid.runs.answers import candidates, tokenizer_of, visible

PROMPT, MASKED = "The capital of France is", "The capital of France is ___."
TEMPERATURES = (0.25, 0.5, 1.0, 2.0, 4.0)
CONSTANT = 100


def show(e: Experiment) -> Iterator[Panel | Claim]:
    run = e.trace(e.text("prompt"))
    logits, hot = run.last_logits(0), e.number("temperature")
    shares = softmax_table(logits, e.on(logits, run.last_logits(0, 0)), BEST)
    pieces = [visible(c.piece) or str(c.id) for c in candidates(tokenizer_of(e.model), logits, [s.id for s in shares.shares])]
    columns = [say("exhibit.softmax.token"), say("exhibit.softmax.logit"), say("exhibit.softmax.below"), say("exhibit.softmax.power")]
    rows = [(piece, s.logit, s.below, s.power, s.share) for piece, s in zip(pieces, shares.shares, strict=True)]
    places = {(n, 1): TensorPlace("logits", logit_cell(run, s.id)) for n, s in enumerate(shares.shares)}
    yield TablePanel(say("exhibit.softmax.table"), [*columns, say("exhibit.softmax.share")], rows, tinted=(4,), places=places)
    bits = {say("exhibit.softmax.bits"): [entropy_at(logits, t) for t in TEMPERATURES]}
    yield LinePanel(say("exhibit.softmax.entropy"), say("exhibit.softmax.temperature"), TEMPERATURES, bits)
    yield e.claim("shares", e.same(shares.gap), total=shares.total, gap=shares.gap)
    yield e.claim(
        "temperature",
        order_kept(logits, hot),
        temperature=e.text("temperature"),
        bits=entropy_at(logits, hot),
        plain=entropy_at(logits, 1.0),
    )
    gap = shifted_gap(logits, CONSTANT)
    yield e.claim("constant", e.same(gap), constant=CONSTANT, gap=gap)
    masked = e.open_model("pellucid/capitals-bert")
    with_bias, without = e.trace(MASKED, masked), e.trace(MASKED, e.variant({"head_bias": False}, masked))
    own, bare = with_bias.last_logits(0, with_bias.blanks[0]), without.last_logits(0, without.blanks[0])
    moved = largest_gap(own, bare)
    yield e.claim("bias", e.differ(moved), gap=moved, share=share_gap(own, bare))
    qwen = biases("qwen2")
    yield e.claim("qwen", qwen.head == 0 and qwen.attention == qwen.models, models=qwen.models, head=qwen.head, attention=qwen.attention)


EXHIBIT = Exhibit("softmax", show, controls=(Control("prompt", PROMPT), Control("temperature", 2.0, TEMPERATURES)))
