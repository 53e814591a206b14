"""What a model stores: its weights once, its cache for every token of every request."""

from collections.abc import Iterator

from pellucid.analysis.catalogue import stored, uncompressed
from pellucid.exhibits.exhibit import Claim, Exhibit, Experiment
from pellucid.exhibits.panel import LinePanel, Panel, TablePanel
from pellucid.messages import say

MODELS = ("llama-2-7b", "llama-3-8b", "deepseek-v3")
CONTEXTS = (1024, 8192, 32768, 131072)


def show(e: Experiment) -> Iterator[Panel | Claim]:
    models = [stored(name) for name in MODELS]
    columns = [say("exhibit.memory.model"), say("exhibit.memory.kind"), say("exhibit.memory.weights"), say("exhibit.memory.token")]
    rows = [(m.name, m.kind, f"{m.weights:,}", f"{m.token:,}", f"{m.even:,}") for m in models]
    yield TablePanel(say("exhibit.memory.table"), [*columns, say("exhibit.memory.even")], rows)
    lines = {m.name: [m.cache(tokens) for tokens in CONTEXTS] for m in models}
    yield LinePanel(say("exhibit.memory.cache"), say("exhibit.memory.context"), CONTEXTS, lines)
    heads, groups, latent = models
    full = uncompressed("deepseek-v3")
    yield e.claim("latent", e.on(latent.token, full) < full, token=f"{latent.token:,}", full=f"{full:,}")
    yield e.claim("groups", groups.token < heads.token, heads=f"{heads.token:,}", groups=f"{groups.token:,}")
    yield e.claim("even", heads.cache(heads.even) >= heads.weights, tokens=f"{heads.even:,}", weights=f"{heads.weights:,}")


EXHIBIT = Exhibit("memory", show, own=True)
