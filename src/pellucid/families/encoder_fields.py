"""What BERT and its descendants share: their ends, a head or a pooler, and BERT's names of everything below."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families.fields import Fields
from pellucid.families.names import Rule


def bare(hf: Fields) -> bool:
    """Return True if the class that wrote the file has no head."""
    names = hf.get("architectures", None)
    return isinstance(names, list) and len(names) == 1 and str(names[0]).endswith("Model")


def ending(cfg: c.Config, head: bool, pooler: bool) -> c.Config:
    """Return `cfg` with the language model's head, or without it and optionally with a pooler."""
    ffn = cfg.layers[0].ffn
    return replace(cfg, head=head, tied=head, head_bias=head, transform=ffn.act if head else None, pooler=pooler)


def norms_first(cfg: c.Config, entry: bool = True) -> c.Config:
    """Return `cfg` with norms before each part, and one behind all. entry: whether the embedding keeps its own."""
    layers = tuple(replace(layer, order="pre") for layer in cfg.layers)
    return replace(cfg, layers=layers, embed_norm=entry, final_norm=True)


def embeddings(name: str) -> tuple[Rule, ...]:
    """Return the table of the embeddings; `name` is the model's in transformers."""
    return (
        Rule(f"{name}.embeddings.word_embeddings.*", "embed.*"),
        Rule(f"{name}.embeddings.position_embeddings.*", "positions.*"),
        Rule(f"{name}.embeddings.token_type_embeddings.*", "types.*"),
        Rule(f"{name}.embeddings.LayerNorm.*", "embed_norm.*"),
    )


def stack(name: str) -> tuple[Rule, ...]:
    """Return the table of everything below the head; `name` is the model's in transformers, with which all names begin."""
    layer = f"{name}.encoder.layer.{{i}}"
    return (
        *embeddings(name),
        *(Rule(f"{layer}.attention.self.{n}.*", f"layers.{{i}}.attn.{n[0]}.*") for n in ("query", "key", "value")),
        Rule(f"{layer}.attention.output.dense.*", "layers.{i}.attn.o.*"),
        Rule(f"{layer}.attention.output.LayerNorm.*", "layers.{i}.attn_norm.*"),
        Rule(f"{layer}.intermediate.dense.*", "layers.{i}.ffn.up.*"),
        Rule(f"{layer}.output.dense.*", "layers.{i}.ffn.down.*"),
        Rule(f"{layer}.output.LayerNorm.*", "layers.{i}.ffn_norm.*"),
        Rule(f"{name}.pooler.dense.*", "pooler.*"),
    )
