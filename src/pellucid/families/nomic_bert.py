"""Nomic BERT (arXiv 2402.01613), which nomic-embed-text v1 and v1.5 are: BERT with rope, a gated network, and no biases but of norms."""

from collections.abc import Container

from pellucid import config as c
from pellucid.families import encoder_fields
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import SPLIT, Rule, prefixed
from pellucid.families.rope import rope

# of kernels, padding and training in Nomic's own files, which spell the other fields as GPT-2 does
SILENT = """
    dense_seq_output fused_bias_fc fused_dropout_add_ln max_trained_positions pad_vocab_size_multiple parallel_block_tied_norm
    use_flash_attn use_xentropy
"""
OFF = """
    causal mlp_fc1_bias mlp_fc2_bias parallel_block prenorm qkv_proj_bias rotary_emb_interleaved scale_attn_by_inverse_layer_idx
    use_rms_norm
"""
OWN = {"swiglu": "silu"}  # their name of a gated network's activation


def config(hf: Fields) -> c.Config:
    hf.read |= set(SILENT.split())
    for name in OFF.split():
        hf.fixed(name, False)
    for name in ("num_experts", "rotary_emb_scale_base", "rotary_scaling_factor"):
        hf.fixed(name, 0)
    hf.fixed("rotary_emb_fraction", 1)
    hf.fixed("scale_attn_weights", True)
    hf.fixed("tie_word_embeddings", True)
    width, heads = hf.either("hidden_size", "n_embd"), hf.either("num_attention_heads", "n_head")
    fits = "head_dim" in hf or width % heads == 0
    hf.relate(fits, "hidden_size % num_attention_heads == 0", hidden_size=width, num_attention_heads=heads)
    head = hf.maybe("head_dim") or width // heads
    turn = rope(hf, head, theta=1000.0, base="rotary_emb_base" if "rotary_emb_base" in hf else "rope_theta")
    act = hf.choice("activation_function", OWN) if "activation_function" in hf else hf.choice("hidden_act", ACTS, "silu")
    mlp = c.Mlp(hf.either("intermediate_size", "n_inner"), act)
    layers = hf.either("num_hidden_layers", "n_layer", high=100_000)
    cfg = c.Config(
        vocab=hf.integer("vocab_size"),
        width=width,
        layers=(c.Layer(c.Attention(heads, heads, head, turn, causal=False), mlp, order="post"),) * layers,
        eps=hf.number("layer_norm_epsilon" if "layer_norm_epsilon" in hf else "layer_norm_eps", 1e-12),
        norm="layer",
        embed_norm=True,
        types=hf.integer("type_vocab_size", 2),
        final_norm=False,
        context=hf.maybe("n_positions") or hf.maybe("max_position_embeddings"),
    )
    return encoder_fields.ending(cfg, not encoder_fields.bare(hf), pooler=False)


def resolve(cfg: c.Config, names: Container[str]) -> c.Config:
    """Return `cfg` with a head if one is stored, whatever config.json says."""
    return encoder_fields.ending(cfg, "cls.predictions.bias" in names or "cls.predictions.decoder.bias" in names, pooler=False)


LAYER = "nomic_bert.encoder.layers.{i}"
RULES = (
    Rule("nomic_bert.embeddings.word_embeddings.*", "embed.*"),
    Rule("nomic_bert.embeddings.token_type_embeddings.*", "types.*"),
    Rule("nomic_bert.emb_ln.*", "embed_norm.*"),
    Rule(f"{LAYER}.attn.Wqkv.*", tuple(f"layers.{{i}}.attn.{n}.*" for n in "qkv"), SPLIT),
    Rule(f"{LAYER}.attn.out_proj.*", "layers.{i}.attn.o.*"),
    Rule(f"{LAYER}.norm1.*", "layers.{i}.attn_norm.*"),
    Rule(f"{LAYER}.mlp.fc12.*", "layers.{i}.ffn.gate.*"),
    Rule(f"{LAYER}.mlp.fc11.*", "layers.{i}.ffn.up.*"),
    Rule(f"{LAYER}.mlp.fc2.*", "layers.{i}.ffn.down.*"),
    Rule(f"{LAYER}.norm2.*", "layers.{i}.ffn_norm.*"),
    Rule("cls.predictions.transform.dense.*", "transform.dense.*"),
    Rule("cls.predictions.transform.layer_norm.*", "transform.norm.*"),
    Rule("cls.predictions.decoder.weight", "head.weight"),
    Rule("cls.predictions.bias", "head.bias"),
)
COPIES = {"cls.predictions.decoder.bias": "cls.predictions.bias"}


IN_MEMORY = {
    "nomic_bert.layers.": "nomic_bert.encoder.layers.", "embeddings.LayerNorm.": "emb_ln.", ".self_attn.": ".attn.",
    ".o_proj.": ".out_proj.", ".up_proj.": ".fc11.", ".gate_proj.": ".fc12.", ".down_proj.": ".fc2.",
    ".post_attention_layernorm.": ".norm1.", ".post_mlp_layernorm.": ".norm2.",
}  # fmt: skip


def respell(name: str) -> str:
    """Return a name of Nomic's own files, of transformers' modules, or of a model without its head, as the table has it."""
    full = prefixed("nomic_bert.", "cls.")(name.removeprefix("bert."))
    for theirs, own in IN_MEMORY.items():
        full = full.replace(theirs, own)
    return full


FAMILY = Family(config=config, rules=RULES, copies=COPIES, respell=respell, resolve=resolve, architecture="NomicBertForMaskedLM")
