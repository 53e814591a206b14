"""Two ways, one result: latent attention grows keys and values from what is stored, or moves the queries to it."""

from collections.abc import Iterator

from pellucid.analysis.latent_forms import attention_work, latent_sizes
from pellucid.analysis.rows import largest_gap
from pellucid.config import Config
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment, causal
from pellucid.exhibits.panel import Panel, TablePanel
from pellucid.messages import say

PROMPT = "The capital of France is"
LARGE = "deepseek-v3"
FORMS = "expanded", "absorbed"


def show(e: Experiment) -> Iterator[Panel | Claim]:
    prompt = e.text("prompt")
    runs = {form: e.trace(prompt, e.variant({"layers.*.attn.form": form}), steps=2) for form in FORMS}
    first = [s for s in e.trace(prompt) if s.step == 0 and s.path.startswith("layers.0.attn.")]
    columns = [say("exhibit.latent.tensor"), say("exhibit.latent.axes"), say("exhibit.latent.shape")]
    yield TablePanel(say("exhibit.latent.tensors"), columns, [(s.path, s.dims, " × ".join(map(str, s.shape))) for s in first])
    work = {form: [attention_work(run, step) for step in (0, 1)] for form, run in runs.items()}
    columns = [say("exhibit.latent.form"), say("exhibit.latent.prefill"), say("exhibit.latent.decode")]
    yield TablePanel(say("exhibit.latent.work"), columns, [(form, *flops) for form, flops in work.items()])
    gap = max(largest_gap(*(run.all("logits")[step].value for run in runs.values())) for step in (0, 1))
    yield e.claim("same", e.same(gap), gap=gap)
    numbers = {f"{form}_{phase}": flops[n] for form, flops in work.items() for n, phase in enumerate(("prefill", "decode"))}
    yield e.claim("work", work["absorbed"][1] < work["expanded"][1], **numbers)
    sizes = latent_sizes(LARGE)
    columns = [say("exhibit.latent.matrix"), say("exhibit.latent.input"), say("exhibit.latent.output")]
    yield TablePanel(say("exhibit.latent.large", model=LARGE), columns, [(name, *size) for name, size in sizes.matrices.items()])
    down, up = (" × ".join(map(str, sizes.matrices[name])) for name in ("q_a", "q_b"))
    yield e.claim("query", sizes.matrices["q_a"][1] == sizes.matrices["q_b"][0], model=LARGE, down=down, up=up)
    yield e.claim("stored", sizes.stored < sizes.heads, model=LARGE, stored=sizes.stored, heads=sizes.heads)


def fits(cfg: Config) -> bool:
    """True for a generator with latent attention in all blocks."""
    return causal(cfg) and all(layer.attn.uncompressed is not None for layer in cfg.layers)


EXHIBIT = Exhibit("latent", show, "pellucid/capitals-deepseek", (Control("prompt", PROMPT),), fits)
