"""Two ways, one result: latent attention grows keys and values from what is stored, or moves the queries to it."""

from collections.abc import Iterator

from pellucid.analysis.latent_forms import attention_work, grown_bytes, stages, stored_bytes
from pellucid.analysis.needs import LATENT
from pellucid.analysis.rows import largest_gap
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import Box, DiagramPanel, Panel, TablePanel, Value
from pellucid.messages import say

PROMPT = "The capital of France is"
FORMS = "expanded", "absorbed"


def show(e: Experiment) -> Iterator[Panel | Claim]:
    prompt = e.text("prompt")
    runs = {form: e.trace(prompt, e.variant({"layers.*.attn.form": form}), steps=2) for form in FORMS}
    ways = {form: [Box(s.name, s.shape, 0, s.grown) for s in stages(run, 1)] for form, run in runs.items()}
    yield DiagramPanel(say("exhibit.absorbed.ways"), ways)
    work = {form: [attention_work(run, step) for step in (0, 1)] for form, run in runs.items()}
    grown = {form: [grown_bytes(run, step) for step in (0, 1)] for form, run in runs.items()}
    sums = (
        "exhibit.absorbed.form",
        "exhibit.absorbed.prefill",
        "exhibit.absorbed.decode",
        "exhibit.absorbed.grown",
        "exhibit.absorbed.grows",
        "exhibit.absorbed.cache",
    )
    lines: list[tuple[Value, ...]] = [(form, *flops, *grown[form], stored_bytes(runs[form], 1)) for form, flops in work.items()]
    yield TablePanel(say("exhibit.absorbed.work"), list(map(say, sums)), lines)
    most, least = grown["expanded"][1], grown["absorbed"][1]
    yield e.claim("bytes", least < most, most=most, least=least, stored=stored_bytes(runs["absorbed"], 1))
    gap = max(largest_gap(*(run.all("logits")[step].value for run in runs.values())) for step in (0, 1))
    yield e.claim("same", e.same(gap), gap=gap)
    numbers = {f"{form}_{phase}": flops[n] for form, flops in work.items() for n, phase in enumerate(("prefill", "decode"))}
    yield e.claim("work", work["absorbed"][1] < work["expanded"][1], **numbers)


EXHIBIT = Exhibit("absorbed", show, "pellucid/capitals-deepseek", (Control("prompt", PROMPT),), LATENT)
