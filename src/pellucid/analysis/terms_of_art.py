"""The terms of a glossary: the exhibit that shows each, and the tensor of a run that it names."""

from collections.abc import Mapping
from dataclasses import dataclass

from pellucid.messages import phrases
from pellucid.tracing import Trace

LANGUAGES = "en", "zh"


@dataclass(frozen=True)
class Term:
    """A term. exhibit: that shows it.  path: of the tensor that it names, "" for none."""

    exhibit: str
    path: str = ""


TERMS: Mapping[str, Term] = {
    "token": Term("pieces"),
    "embedding": Term("pieces", "embed"),
    "position": Term("places", "positions"),
    "norm": Term("norms", "layers.0.attn_norm"),
    "query": Term("equation", "layers.0.attn.q"),
    "key": Term("equation", "layers.0.attn.k"),
    "value": Term("equation", "layers.0.attn.v"),
    "scores": Term("scale", "layers.0.attn.scores"),
    "pattern": Term("patterns", "layers.0.attn.pattern"),
    "head": Term("heads", "layers.0.attn.z"),
    "residual": Term("residual", "layers.0.out"),
    "neurons": Term("activations", "layers.0.ffn.neurons"),
    "network": Term("rows", "layers.0.ffn"),
    "logits": Term("softmax", "logits"),
    "cache": Term("conversation"),
    "prefill": Term("conversation"),
    "expert": Term("routing"),
    "rotary": Term("turns"),
    "lora": Term("adapter"),
    "loss": Term("forcing"),
}


def tensor_of(run: Trace, term: Term) -> str:
    """Write the path and the sizes of a term's tensor in a run; "" for a term without one, or a run that lacks it."""
    if not term.path or term.path not in run:
        return ""
    own = run.all(term.path)[0]
    return f"{own.path} {[*own.shape]}"


def words(key: str) -> list[str]:
    """Return a message in each language."""
    return [phrases(language)[key] for language in LANGUAGES]
