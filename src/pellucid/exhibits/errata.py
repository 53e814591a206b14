"""Errata: what is often stated, beside numbers that are counted or run when the page is opened."""

from collections.abc import Iterator

from pellucid.analysis.corrected_facts import CORRECTED
from pellucid.analysis.needs import CAUSAL_HEADS
from pellucid.exhibits import names
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import Panel, TablePanel
from pellucid.messages import say

PROMPT = "The capital of France is"
TEXTS = {
    "ids": ("exhibit.errata.ids", "exhibit.errata.ids.so"),
    "vocabulary": ("exhibit.errata.vocabulary", "exhibit.errata.vocabulary.so"),
    "gpt2": ("exhibit.errata.gpt2", "exhibit.errata.gpt2.so"),
    "parts": ("exhibit.errata.parts", "exhibit.errata.parts.so"),
    "sizes": ("exhibit.errata.sizes", "exhibit.errata.sizes.so"),
    "padded": ("exhibit.errata.padded", "exhibit.errata.padded.so"),
    "maps": ("exhibit.errata.maps", "exhibit.errata.maps.so"),
    "heads": ("exhibit.errata.heads", "exhibit.errata.heads.so"),
    "slices": ("exhibit.errata.slices", "exhibit.errata.slices.so"),
    "reshape": ("exhibit.errata.reshape", "exhibit.errata.reshape.so"),
    "original": ("exhibit.errata.original", "exhibit.errata.original.so"),
    "large": ("exhibit.errata.large", "exhibit.errata.large.so"),
    "t5": ("exhibit.errata.t5", "exhibit.errata.t5.so"),
    "future": ("exhibit.errata.future", "exhibit.errata.future.so"),
    "values": ("exhibit.errata.values", "exhibit.errata.values.so"),
    "embedding": ("exhibit.errata.embedding", "exhibit.errata.embedding.so"),
    "grown": ("exhibit.errata.grown", "exhibit.errata.grown.so"),
    "norms": ("exhibit.errata.norms", "exhibit.errata.norms.so"),
    "shuffled": ("exhibit.errata.shuffled", "exhibit.errata.shuffled.so"),
    "sum": ("exhibit.errata.sum", "exhibit.errata.sum.so"),
    "shared": ("exhibit.errata.shared", "exhibit.errata.shared.so"),
    "relu": ("exhibit.errata.relu", "exhibit.errata.relu.so"),
    "shift": ("exhibit.errata.shift", "exhibit.errata.shift.so"),
    "bias": ("exhibit.errata.bias", "exhibit.errata.bias.so"),
    "rope": ("exhibit.errata.rope", "exhibit.errata.rope.so"),
    "width": ("exhibit.errata.width", "exhibit.errata.width.so"),
    "queries": ("exhibit.errata.queries", "exhibit.errata.queries.so"),
    "v3": ("exhibit.errata.v3", "exhibit.errata.v3.so"),
    "blocks": ("exhibit.errata.blocks", "exhibit.errata.blocks.so"),
    "ahead": ("exhibit.errata.ahead", "exhibit.errata.ahead.so"),
    "routing": ("exhibit.errata.routing", "exhibit.errata.routing.so"),
    "dense": ("exhibit.errata.dense", "exhibit.errata.dense.so"),
    "printed": ("exhibit.errata.printed", "exhibit.errata.printed.so"),
    "closed": ("exhibit.errata.closed", "exhibit.errata.closed.so"),
}


def show(e: Experiment) -> Iterator[Panel | Claim]:
    run = e.trace(e.text("prompt"))
    numbers = {key: fact.number(run) for key, fact in CORRECTED.items()}
    rows = [(say(f"exhibit.errata.{key}"), say(f"exhibit.errata.{key}.so", number=numbers[key]), CORRECTED[key].exhibit) for key in TEXTS]
    columns = [say("exhibit.errata.often"), say("exhibit.errata.so"), say("exhibit.errata.exhibit")]
    yield TablePanel(say("exhibit.errata.table"), columns, rows, exhibits=2)
    linked = [e.on(exhibit, "") in names() for _, _, exhibit in rows]
    yield e.claim("linked", all(linked) and TEXTS.keys() == CORRECTED.keys(), rows=len(rows))
    yield e.claim("future", numbers["future"] == "0", number=numbers["future"])


EXHIBIT = Exhibit("errata", show, controls=(Control("prompt", PROMPT),), needs=CAUSAL_HEADS)
