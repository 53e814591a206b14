"""BERT (arXiv 1810.04805): bidirectional attention, norms after the sums, token types; a masked language model, or an encoder.

Without a head it returns its last rows, and a pooler may multiply the first row of each text.
"""

from collections.abc import Callable, Container

from pellucid import config as c
from pellucid.families import encoder_fields
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule, prefixed

# Fields of TensorFlow's files about the pooler, which has the model's own width here.
POOLER = {"directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type"}


def config(hf: Fields, act: str = "gelu") -> c.Config:
    """Return the Config of BERT's fields. act: the activation of a file that names none."""
    width, heads, layers = hf.integer("hidden_size"), hf.integer("num_attention_heads"), hf.integer("num_hidden_layers", high=100_000)
    hf.relate(width % heads == 0, "hidden_size % num_attention_heads == 0", hidden_size=width, num_attention_heads=heads)
    hf.read |= POOLER
    hf.fixed("position_embedding_type", "absolute")
    hf.fixed("is_decoder", False)
    hf.fixed("tie_word_embeddings", True)
    act, positions = hf.choice("hidden_act", ACTS, act), hf.integer("max_position_embeddings", 512)
    attn = c.Attention(heads, heads, width // heads, bias=True, out_bias=True, causal=False)
    cfg = c.Config(
        vocab=hf.integer("vocab_size"),
        width=width,
        layers=(c.Layer(attn, c.Mlp(hf.integer("intermediate_size"), act, gated=False, bias=True), order="post"),) * layers,
        eps=hf.number("layer_norm_eps", 1e-12),
        norm="layer",
        positions=positions,
        embed_norm=True,
        types=hf.integer("type_vocab_size", 2),
        final_norm=False,
        context=positions,
    )
    return encoder_fields.ending(cfg, not encoder_fields.bare(hf), encoder_fields.bare(hf))


def resolving(name: str) -> Callable[[c.Config, Container[str]], c.Config]:
    """Return a `Family.resolve`: a head if one is stored, whatever config.json says; a pooler only without a head, which ignores it."""

    def resolve(cfg: c.Config, names: Container[str]) -> c.Config:
        head = "cls.predictions.bias" in names
        return encoder_fields.ending(cfg, head, not head and f"{name}.pooler.dense.weight" in names)

    return resolve


def ignoring(name: str) -> Callable[[c.Config, Container[str]], tuple[str, ...]]:
    """Return a `Family.ignored`: the position numbers, the next-sentence head, and a pooler that the model lacks."""
    of_texts = (rf"{name}\.embeddings\.position_ids", r"cls\.seq_relationship\..*")
    return lambda cfg, names: of_texts if cfg.pooler else (*of_texts, rf"{name}\.pooler\..*")


HEAD = (
    Rule("cls.predictions.transform.dense.*", "transform.dense.*"),
    Rule("cls.predictions.transform.LayerNorm.*", "transform.norm.*"),
    Rule("cls.predictions.decoder.weight", "head.weight"),
    Rule("cls.predictions.bias", "head.bias"),
)
RULES = (*encoder_fields.stack("bert"), *HEAD)
COPIES = {"cls.predictions.decoder.bias": "cls.predictions.bias"}
resolve, ignored = resolving("bert"), ignoring("bert")


FAMILY = Family(
    config=config,
    rules=RULES,
    ignored=ignored,
    copies=COPIES,
    respell=prefixed("bert.", "cls."),
    resolve=resolve,
    architecture="BertForMaskedLM",
)
