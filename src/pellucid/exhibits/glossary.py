"""A glossary of both languages, each term with its tensor in a run."""

from collections.abc import Iterator

from pellucid.analysis.terms_of_art import TERMS, tensor_of, words
from pellucid.exhibits import names
from pellucid.exhibits.exhibit import Claim, Control, Exhibit, Experiment
from pellucid.exhibits.panel import Panel, TablePanel, column_places
from pellucid.messages import say

PROMPT = "The capital of France is"
TEXTS = {
    "token": ("exhibit.glossary.token.term", "exhibit.glossary.token.is"),
    "embedding": ("exhibit.glossary.embedding.term", "exhibit.glossary.embedding.is"),
    "position": ("exhibit.glossary.position.term", "exhibit.glossary.position.is"),
    "norm": ("exhibit.glossary.norm.term", "exhibit.glossary.norm.is"),
    "query": ("exhibit.glossary.query.term", "exhibit.glossary.query.is"),
    "key": ("exhibit.glossary.key.term", "exhibit.glossary.key.is"),
    "value": ("exhibit.glossary.value.term", "exhibit.glossary.value.is"),
    "scores": ("exhibit.glossary.scores.term", "exhibit.glossary.scores.is"),
    "pattern": ("exhibit.glossary.pattern.term", "exhibit.glossary.pattern.is"),
    "head": ("exhibit.glossary.head.term", "exhibit.glossary.head.is"),
    "residual": ("exhibit.glossary.residual.term", "exhibit.glossary.residual.is"),
    "neurons": ("exhibit.glossary.neurons.term", "exhibit.glossary.neurons.is"),
    "network": ("exhibit.glossary.network.term", "exhibit.glossary.network.is"),
    "logits": ("exhibit.glossary.logits.term", "exhibit.glossary.logits.is"),
    "cache": ("exhibit.glossary.cache.term", "exhibit.glossary.cache.is"),
    "prefill": ("exhibit.glossary.prefill.term", "exhibit.glossary.prefill.is"),
    "expert": ("exhibit.glossary.expert.term", "exhibit.glossary.expert.is"),
    "rotary": ("exhibit.glossary.rotary.term", "exhibit.glossary.rotary.is"),
    "lora": ("exhibit.glossary.lora.term", "exhibit.glossary.lora.is"),
    "loss": ("exhibit.glossary.loss.term", "exhibit.glossary.loss.is"),
}
COLUMNS = (
    "exhibit.glossary.english",
    "exhibit.glossary.chinese",
    "exhibit.glossary.exhibit",
    "exhibit.glossary.tensor",
    "exhibit.glossary.meaning",
)


def show(e: Experiment) -> Iterator[Panel | Claim]:
    run = e.trace(e.text("prompt"))
    tensors = {key: tensor_of(run, term) for key, term in TERMS.items()}
    paths = [TERMS[key].path if tensors[key] else "" for key in TEXTS]
    rows = [(*words(TEXTS[key][0]), TERMS[key].exhibit, tensors[key], say(f"exhibit.glossary.{key}.is")) for key in TEXTS]
    columns = list(map(say, COLUMNS))
    yield TablePanel(say("exhibit.glossary.table"), columns, rows, exhibits=2, places=column_places(3, paths))
    shown = [key for key in TERMS if tensors[key]]
    yield e.claim("tensors", len(shown) > 0, tensors=len(shown), terms=len(TERMS))
    linked = all(e.on(term.exhibit, "") in names() for term in TERMS.values())
    yield e.claim("linked", linked and TEXTS.keys() == TERMS.keys() and all(all(words(term)) for term, _ in TEXTS.values()))


EXHIBIT = Exhibit("glossary", show, controls=(Control("prompt", PROMPT),))
