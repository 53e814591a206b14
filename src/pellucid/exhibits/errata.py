"""Errata: what is often stated, beside numbers that are counted or run when the page is opened."""

from collections.abc import Iterator

from pellucid.analysis.corrected_facts import CORRECTED
from pellucid.analysis.mask_leak import causal_attention
from pellucid.exhibits import names
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import Panel, TablePanel
from pellucid.messages import say

PROMPT = "The capital of France is"
TEXTS = {
    "vocabulary": ("exhibit.errata.vocabulary", "exhibit.errata.vocabulary.so"),
    "gpt2": ("exhibit.errata.gpt2", "exhibit.errata.gpt2.so"),
    "maps": ("exhibit.errata.maps", "exhibit.errata.maps.so"),
    "heads": ("exhibit.errata.heads", "exhibit.errata.heads.so"),
    "reshape": ("exhibit.errata.reshape", "exhibit.errata.reshape.so"),
    "original": ("exhibit.errata.original", "exhibit.errata.original.so"),
    "t5": ("exhibit.errata.t5", "exhibit.errata.t5.so"),
    "future": ("exhibit.errata.future", "exhibit.errata.future.so"),
    "embedding": ("exhibit.errata.embedding", "exhibit.errata.embedding.so"),
    "shared": ("exhibit.errata.shared", "exhibit.errata.shared.so"),
    "relu": ("exhibit.errata.relu", "exhibit.errata.relu.so"),
    "bias": ("exhibit.errata.bias", "exhibit.errata.bias.so"),
    "rope": ("exhibit.errata.rope", "exhibit.errata.rope.so"),
    "width": ("exhibit.errata.width", "exhibit.errata.width.so"),
    "queries": ("exhibit.errata.queries", "exhibit.errata.queries.so"),
    "v3": ("exhibit.errata.v3", "exhibit.errata.v3.so"),
    "dense": ("exhibit.errata.dense", "exhibit.errata.dense.so"),
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


EXHIBIT = Exhibit("errata", show, controls=(Control("prompt", PROMPT),), fits=causal_attention)
