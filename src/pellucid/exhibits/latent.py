"""Two ways, one result: latent attention grows keys and values from what is stored, or moves the queries to it."""

from collections.abc import Iterator

from pellucid.analysis.latent_equations import SYMBOLS, channel_names, equations
from pellucid.analysis.latent_forms import attention_work, grown_bytes, latent_sizes, stored_bytes
from pellucid.analysis.mask_leak import token_names
from pellucid.analysis.needs import LATENT
from pellucid.analysis.rows import largest_gap
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import MatrixPanel, Panel, TablePanel, Value, column_places
from pellucid.messages import say

PROMPT = "The capital of France is"
LARGE = "deepseek-v3"
FORMS = "expanded", "absorbed"
PLAIN = 2  # the number of the run after those of both forms
CHANNELS = 12  # that are drawn of a symbol's rows


def show(e: Experiment) -> Iterator[Panel | Claim]:
    prompt = e.text("prompt")
    runs = {form: e.trace(prompt, e.variant({"layers.*.attn.form": form}), steps=2) for form in FORMS}
    plain = e.trace(prompt)
    eleven = equations(plain)
    parts = (
        "exhibit.latent.equation",
        "exhibit.latent.tensor",
        "exhibit.latent.axes",
        "exhibit.latent.shape",
        "exhibit.latent.weight",
        "exhibit.latent.gap",
        "exhibit.latent.kept",
    )
    yes = {True: say("exhibit.latent.yes"), False: ""}
    places = column_places(1, [q.path if q.gap is not None else "" for q in eleven], PLAIN)
    rows = [(q.text, q.name, q.dims, q.shape, q.matrix, q.gap, yes[q.stored]) for q in eleven]
    by_symbol = {q.symbol: n for n, q in enumerate(eleven)}
    chosen = by_symbol.get(e.text("symbol"), 0)
    yield TablePanel(say("exhibit.latent.equations"), list(map(say, parts)), rows, chosen, places=places)
    one = eleven[chosen]
    cells = one.rows(CHANNELS)
    title, channels = say("exhibit.latent.numbers", symbol=one.symbol), channel_names(cells)
    cell = one.cell("row", "column")
    yield MatrixPanel(title, token_names(plain), channels, cells, one.path, cell=cell, run=PLAIN)
    apart = [q.gap for q in eleven if q.gap is not None]
    yield e.claim("equations", e.same(max(apart)), checked=len(apart), count=len(eleven), gap=max(apart))
    work = {form: [attention_work(run, step) for step in (0, 1)] for form, run in runs.items()}
    grown = {form: [grown_bytes(run, step) for step in (0, 1)] for form, run in runs.items()}
    sums = (
        "exhibit.latent.form",
        "exhibit.latent.prefill",
        "exhibit.latent.decode",
        "exhibit.latent.grown",
        "exhibit.latent.grows",
        "exhibit.latent.cache",
    )
    lines: list[tuple[Value, ...]] = [(form, *flops, *grown[form], stored_bytes(runs[form], 1)) for form, flops in work.items()]
    yield TablePanel(say("exhibit.latent.work"), list(map(say, sums)), lines)
    most, least = grown["expanded"][1], grown["absorbed"][1]
    yield e.claim("bytes", least < most, most=most, least=least, stored=stored_bytes(runs["absorbed"], 1))
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


CONTROLS = (Control("prompt", PROMPT), Control("symbol", "c^KV", SYMBOLS))
EXHIBIT = Exhibit("latent", show, "pellucid/capitals-deepseek", CONTROLS, LATENT)
