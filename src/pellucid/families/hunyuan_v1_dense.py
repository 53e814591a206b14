"""Hunyuan's dense models, 0.5B to 7B (Tencent, 2025): Llama with norms of queries and keys behind rope, and a base grown by `alpha`."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule
from pellucid.families.rope import kind, settings

# of a head that judges texts, of ids, and of the house's larger models
SILENT = """
    add_classification_head attention_head_dim cla_share_factor class_num dense_list eod_token_id im_end_id im_newline_id im_start_id
    image_token_id mask_init_id org_vocab_size pad_id pool_type text_end_id text_start_id
"""
BESIDE_ALPHA = {"beta_fast", "beta_slow", "mscale", "mscale_all_dim"}  # nothing reads them there


def grown(hf: Fields, turn: c.Rope) -> c.Rope:
    """Return `turn` with the base that a "dynamic" scaling with `alpha` means: larger from the first token on, whatever the length."""
    scaling = settings(hf)
    if scaling is None or kind(scaling) != "dynamic" or "alpha" not in scaling:
        return turn
    scaling.read |= BESIDE_ALPHA
    return replace(turn, theta=turn.theta * scaling.number("alpha") ** (turn.width / (turn.width - 2)), scaling=None)


def attention(hf: Fields) -> c.Attention:
    """Return the attention, and refuse what no Hunyuan model that is read here has."""
    hf.read |= set(SILENT.split())
    for name, value in {
        "use_cla": False,
        "use_qk_norm": True,
        "use_rotary_pos_emb": True,
        "mlp_bias": False,
        "norm_type": "rms",
    }.items():
        hf.fixed(name, value)
    attn = llama.attention(hf, qk_norm=True)
    assert attn.rope is not None
    return replace(attn, rope=grown(hf, attn.rope), norm_turned=True)


def config(hf: Fields) -> c.Config:
    hf.fixed("num_experts", 1)
    attn = attention(hf)
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"))
    return llama.decoder(hf, (c.Layer(attn, mlp),) * hf.integer("num_hidden_layers", high=100_000), eps=1e-5)


NORMS = {"query": "q", "key": "k"}
QK_NORMS = tuple(Rule(f"model.layers.{{i}}.self_attn.{theirs}_layernorm.*", f"layers.{{i}}.attn.{n}_norm.*") for theirs, n in NORMS.items())

FAMILY = Family(
    config=config,
    rules=(*llama.RULES, *QK_NORMS),
    ignored=llama.IGNORED,
    architecture="HunYuanDenseV1ForCausalLM",
)
