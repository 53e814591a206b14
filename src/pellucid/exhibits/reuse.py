"""What is not computed again: rows of earlier tokens stay as they are, and later ones read their keys and values alone."""

from collections.abc import Iterator

from pellucid.analysis.mask_leak import token_names
from pellucid.analysis.needs import REUSED
from pellucid.analysis.reused_rows import apart, bytes_of_a_row, cached, earlier_rows, last_attention, recomputed
from pellucid.analysis.rows import largest_gap
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import Panel, TablePanel
from pellucid.messages import say

PROMPT = "The capital of France is"
READ = "q", "k", "v", "z"  # of an attention; later rows may read those of earlier ones
KEPT = "k", "v"
COLUMNS = (
    "exhibit.reuse.token",
    "exhibit.reuse.rows",
    "exhibit.reuse.again",
    "exhibit.reuse.work",
    "exhibit.reuse.without",
    "exhibit.reuse.gap",
)


def show(e: Experiment) -> Iterator[Panel | Claim]:
    prompt = e.text("prompt")
    run = e.trace(prompt)
    again = [recomputed(e.model, run.ids[:end]) for end, _ in enumerate(run.ids, 1)]
    own = e.on(cached(e.model, run.ids), again)
    gaps = [apart(a, b) for a, b in zip(own, again, strict=True)]
    tokens = token_names(run)
    lines = [(name, a.rows, b.rows, a.flops, b.flops, gap) for name, a, b, gap in zip(tokens, own, again, gaps, strict=True)]
    yield TablePanel(say("exhibit.reuse.steps"), list(map(say, COLUMNS)), lines)
    (rows, flops), (rows_again, flops_again) = ((sum(w.rows for w in all), sum(w.flops for w in all)) for all in (own, again))
    yield e.claim("saved", rows < rows_again, rows=rows, all=rows_again, work=flops, without=flops_again)
    yield e.claim("same", e.same(max(gaps)), gap=max(gaps))
    last = last_attention(run)
    moved = {name: largest_gap(run.last_logits(0), e.trace(prompt, changes=[f"{last}.{name}[T=0] = 0"]).last_logits(0)) for name in READ}
    heads = [say("exhibit.reuse.tensor"), say("exhibit.reuse.bytes"), say("exhibit.reuse.moved"), say("exhibit.reuse.stored")]
    sizes = {name: bytes_of_a_row(run, [f"{last}.{name}"]) for name in READ}
    table = [(f"{last}.{name}", sizes[name], moved[name], say("exhibit.reuse.yes") if name in KEPT else "") for name in READ]
    yield TablePanel(say("exhibit.reuse.read", path=last), heads, table)
    read, idle = min(moved[name] for name in KEPT), max(moved[name] for name in READ if name not in KEPT)
    yield e.claim("kept", idle == 0 < read, read=read, idle=idle)
    *_, short, long = again
    still, open_to_all = earlier_rows(short, long), e.variant({"layers.*.attn.causal": False})
    shifted = earlier_rows(recomputed(open_to_all, run.ids[:-1]), recomputed(open_to_all, run.ids))
    about = [say("exhibit.reuse.mask"), say("exhibit.reuse.earlier"), say("exhibit.reuse.reusable")]
    ways = [(say("exhibit.reuse.causal"), still, say("exhibit.reuse.yes")), (say("exhibit.reuse.open"), shifted, "")]
    yield TablePanel(say("exhibit.reuse.added"), about, ways)
    yield e.claim("breaks", e.same(still) and e.differ(shifted), still=still, moved=shifted)


EXHIBIT = Exhibit("reuse", show, controls=(Control("prompt", PROMPT, tokens=2),), needs=REUSED)
