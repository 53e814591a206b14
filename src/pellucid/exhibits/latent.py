"""What latent attention keeps: its eleven equations, each computed again, and the two of them that the cache stores."""

from collections.abc import Iterator

from pellucid.analysis.latent_equations import SYMBOLS, channel_names, equations
from pellucid.analysis.latent_forms import latent_sizes
from pellucid.analysis.mask_leak import token_names
from pellucid.analysis.needs import LATENT
from pellucid.analysis.rows import largest_gap
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import MatrixPanel, Panel, TablePanel, column_places
from pellucid.messages import say

PROMPT = "The capital of France is"
LARGE = "deepseek-v3"
WITHOUT_KEY = ("layers.*.attn.k_shared = 0",)
CHANNELS = 12  # that are drawn of a symbol's rows


def show(e: Experiment) -> Iterator[Panel | Claim]:
    prompt = e.text("prompt")
    run = e.trace(prompt)
    eleven = equations(run)
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
    places = column_places(1, [q.path if q.gap is not None else "" for q in eleven])
    rows = [(q.text, q.name, q.dims, q.shape, q.matrix, q.gap, yes[q.stored]) for q in eleven]
    by_symbol = {q.symbol: n for n, q in enumerate(eleven)}
    chosen = by_symbol.get(e.text("symbol"), 0)
    yield TablePanel(say("exhibit.latent.equations"), list(map(say, parts)), rows, chosen, places=places)
    one = eleven[chosen]
    cells = one.rows(CHANNELS)
    title, channels = say("exhibit.latent.numbers", symbol=one.symbol), channel_names(cells)
    yield MatrixPanel(title, token_names(run), channels, cells, one.path, cell=one.cell("row", "column"))
    apart = [q.gap for q in eleven if q.gap is not None]
    yield e.claim("equations", e.same(max(apart)), checked=len(apart), count=len(eleven), gap=max(apart))
    moved = largest_gap(run.last_logits(0), e.trace(prompt, changes=WITHOUT_KEY).last_logits(0))
    yield e.claim("rotary", e.differ(moved), gap=moved)
    sizes = latent_sizes(LARGE)
    columns = [say("exhibit.latent.matrix"), say("exhibit.latent.input"), say("exhibit.latent.output")]
    yield TablePanel(say("exhibit.latent.large", model=LARGE), columns, [(name, *size) for name, size in sizes.matrices.items()])
    down, up = (" × ".join(map(str, sizes.matrices[name])) for name in ("q_a", "q_b"))
    yield e.claim("query", sizes.matrices["q_a"][1] == sizes.matrices["q_b"][0], model=LARGE, down=down, up=up)
    yield e.claim("stored", sizes.stored < sizes.heads, model=LARGE, stored=sizes.stored, heads=sizes.heads)


CONTROLS = (Control("prompt", PROMPT, tokens=2), Control("symbol", "c^KV", SYMBOLS))
EXHIBIT = Exhibit("latent", show, "pellucid/capitals-deepseek", CONTROLS, LATENT)
