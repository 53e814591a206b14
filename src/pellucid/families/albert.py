"""ALBERT (arXiv 1909.11942): BERT's block, whose weights all blocks share, behind an embedding that is narrower than the blocks."""

from collections.abc import Container, Iterator
from dataclasses import replace

from pellucid import config as c
from pellucid.families import bert, encoder_fields
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule, prefixed

# of training, and of TensorFlow's files
UNUSED = {"classifier_dropout_prob", "down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks"}


def config(hf: Fields) -> c.Config:
    hf.read |= UNUSED
    cfg, groups = bert.config(hf, act="gelu_new"), hf.integer("num_hidden_groups", 1)
    blocks = len(cfg.layers)
    hf.relate(groups <= blocks, "num_hidden_groups <= num_hidden_layers", num_hidden_groups=groups, num_hidden_layers=blocks)
    hf.fixed("inner_group_num", 1)  # as all published files have it
    firsts = [-(-n * blocks // groups) for n in range(groups)]  # the first block of each group
    shares = tuple(firsts[i * groups // blocks] for i in range(blocks))
    return replace(cfg, shares=shares, embed_width=hf.integer("embedding_size", 128), narrow_entry=True)


def resolve(cfg: c.Config, names: Container[str]) -> c.Config:
    """Return `cfg` with a head if one is stored, whatever config.json says, and with a pooler only without a head, which ignores it."""
    head = "predictions.bias" in names
    return encoder_fields.ending(cfg, head, not head and "albert.pooler.weight" in names)


def ignored(cfg: c.Config, names: Container[str]) -> tuple[str, ...]:
    """Return patterns of the position numbers, of the head that sorts sentences, and of a pooler that the model lacks."""
    of_texts = (r"albert\.embeddings\.position_ids", r"sop_classifier\..*")
    return of_texts if cfg.pooler else (*of_texts, r"albert\.pooler\..*")


ENDS = (
    *encoder_fields.embeddings("albert"),
    Rule("albert.encoder.embedding_hidden_mapping_in.*", "widen.*"),
    Rule("albert.pooler.*", "pooler.*"),
    Rule("predictions.dense.*", "transform.dense.*"),
    Rule("predictions.LayerNorm.*", "transform.norm.*"),
    Rule("predictions.decoder.weight", "head.weight"),
    Rule("predictions.bias", "head.bias"),
)
BLOCK = {
    "attention.query": "attn.q",
    "attention.key": "attn.k",
    "attention.value": "attn.v",
    "attention.dense": "attn.o",
    "attention.LayerNorm": "attn_norm",
    "ffn": "ffn.up",
    "ffn_output": "ffn.down",
    "full_layer_layer_norm": "ffn_norm",
}


def blocks(cfg: c.Config) -> Iterator[Rule]:
    """Yield the rules of the first block of each group, whose weights the others share."""
    for group, first in enumerate(sorted(set(cfg.shares))):
        disk = f"albert.encoder.albert_layer_groups.{group}.albert_layers.0"
        yield from (Rule(f"{disk}.{theirs}.*", f"layers.{first}.{ours}.*") for theirs, ours in BLOCK.items())


def rules(cfg: c.Config) -> tuple[Rule, ...]:
    return (*ENDS, *blocks(cfg))


FAMILY = Family(
    config=config,
    rules=rules,
    ignored=ignored,
    copies={"predictions.decoder.bias": "predictions.bias"},
    respell=prefixed("albert.", "predictions.", "sop_classifier."),
    resolve=resolve,
    architecture="AlbertForMaskedLM",
)
