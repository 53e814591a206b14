"""Famous models by their numbers, counted from what their configurations build."""

from collections.abc import Iterator

from pellucid.analysis.catalogue import FAMOUS, built, parameters_of, sizes_of
from pellucid.exhibits.exhibit import Claim, Exhibit, Experiment
from pellucid.exhibits.panel import Panel, TablePanel
from pellucid.messages import say


def show(e: Experiment) -> Iterator[Panel | Claim]:
    models = {one.name: one for one in sizes_of(FAMOUS)}
    columns = [say("exhibit.sizes.model"), say("exhibit.sizes.released"), say("exhibit.sizes.layers"), say("exhibit.sizes.width")]
    counted = [say("exhibit.sizes.heads"), say("exhibit.sizes.published"), say("exhibit.sizes.total"), say("exhibit.sizes.active")]
    rows = [(m.name, m.released, m.layers, m.width, m.heads, m.published, f"{m.total:,}", f"{m.active:,}") for m in models.values()]
    yield TablePanel(say("exhibit.sizes.table"), [*columns, *counted], rows)
    own, gpt2 = parameters_of("gpt2-small", e.on({}, {"n_layer": 13})), built("gpt2-small")
    yield e.claim("built", int(own["parameters.total"]) == gpt2, built=f"{gpt2:,}", published=models["GPT-2 small"].published)
    sparse = models["DeepSeek-V3"]
    yield e.claim("active", sparse.active < sparse.total, total=f"{sparse.total:,}", active=f"{sparse.active:,}")
    old, new = models["LLaMA-7B"], models["Llama-2-7B"]
    yield e.claim("name", old.total == new.total, total=f"{old.total:,}", old=old.published, new=new.published)


EXHIBIT = Exhibit("sizes", show, own=True)
