"""DBRX 132B-A36B (Databricks, 2024): LayerNorms without bias, clipped queries, keys and values, four of sixteen experts by a softmax."""

from pellucid import config as c
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import HARMLESS, Fields
from pellucid.families.names import EXPERTS_FLAT, EXPERTS_FLAT_TURNED, SPLIT, Rule, prefixed
from pellucid.families.rope import rope

TRAINING = {"moe_jitter_eps", "moe_loss_weight", "hidden_size"}  # the last is d_model in transformers, whatever the file says


def part(hf: Fields, name: str) -> Fields:
    """Return the fields of one of a block's parts, among which transformers writes those of any config."""
    hf.get(name)
    inside = hf.part(name)
    assert inside is not None
    inside.read |= HARMLESS
    return inside


def attention(hf: Fields, width: int) -> c.Attention:
    own, heads = part(hf, "attn_config"), hf.integer("n_heads")
    groups, base = own.integer("kv_n_heads", 1), own.number("rope_theta", above=1.0)
    hf.fixed("num_key_value_heads", groups)
    hf.relate(width % heads == 0, "d_model % n_heads == 0", d_model=width, n_heads=heads)
    hf.relate(heads % groups == 0, "n_heads % kv_n_heads == 0", n_heads=heads, kv_n_heads=groups)
    turn = rope(hf, width // heads, theta=base)
    # transformers 5 turns by its own field and passes over the one that the model was trained with
    hf.relate(turn.theta == base, "rope_parameters.rope_theta == attn_config.rope_theta", rope_theta=turn.theta, of_attention=base)
    return c.Attention(heads, groups, width // heads, turn, clip=own.optional("clip_qkv"))


def experts(hf: Fields) -> c.Moe:
    own = part(hf, "ffn_config")
    own.read |= TRAINING
    count, chosen = own.integer("moe_num_experts", 4), own.integer("moe_top_k", 1)
    own.relate(chosen <= count, "moe_top_k <= moe_num_experts", moe_top_k=chosen, moe_num_experts=count)
    power, act = own.optional("moe_normalize_expert_weights", 1.0), own.part("ffn_act_fn")
    own.relate(power in (None, 1.0), "moe_normalize_expert_weights in (null, 1)", moe_normalize_expert_weights=power)
    return c.Moe(
        count,
        chosen,
        own.integer("ffn_hidden_size", 3584),
        affinity="softmax",
        corrected=False,
        normalised=power is not None,
        act="silu" if act is None else act.choice("name", ACTS, "silu"),
        least=0.0,
    )


def config(hf: Fields) -> c.Config:
    width = hf.integer("d_model")
    hf.read.add("emb_pdrop")
    hf.fixed("tie_word_embeddings", False)
    return c.Config(
        vocab=hf.integer("vocab_size"),
        width=width,
        layers=(c.Layer(attention(hf, width), experts(hf)),) * hf.integer("n_layers", high=100_000),
        norm="layer, no bias",
        context=hf.integer("max_seq_len", 2048),
    )


LAYER = "transformer.blocks.{i}"
RULES = (
    Rule("transformer.wte.*", "embed.*"),
    Rule(f"{LAYER}.norm_attn_norm.norm_1.*", "layers.{i}.attn_norm.*"),
    Rule(f"{LAYER}.norm_attn_norm.attn.Wqkv.*", tuple(f"layers.{{i}}.attn.{n}.*" for n in "qkv"), SPLIT),
    Rule(f"{LAYER}.norm_attn_norm.attn.out_proj.*", "layers.{i}.attn.o.*"),
    Rule(f"{LAYER}.norm_attn_norm.norm_2.*", "layers.{i}.ffn_norm.*"),
    Rule(f"{LAYER}.ffn.router.layer.weight", "layers.{i}.ffn.router.weight"),
    Rule(f"{LAYER}.ffn.experts.mlp.w1", "layers.{i}.ffn.gate", EXPERTS_FLAT),
    Rule(f"{LAYER}.ffn.experts.mlp.v1", "layers.{i}.ffn.up", EXPERTS_FLAT),
    Rule(f"{LAYER}.ffn.experts.mlp.w2", "layers.{i}.ffn.down", EXPERTS_FLAT_TURNED),
    Rule("transformer.norm_f.*", "norm.*"),
    Rule("lm_head.*", "head.*"),
)

FAMILY = Family(config=config, rules=RULES, respell=prefixed("transformer.", "lm_head."), architecture="DbrxForCausalLM")
