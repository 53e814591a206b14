"""MiniCPM3 4B (arXiv 2404.06395): DeepSeek-V2's latent attention, whose halves turn, and factors of the embedding, parts and head."""

from pellucid import config as c
from pellucid.families import deepseek_v3, llama, minicpm
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.rope import across_mscale, rope


def latent(hf: Fields) -> c.Latent:
    """Return MLA whose rotary part turns by halves; YaRN scales its softmax as DeepSeek-V3's."""
    hf.read |= {"head_dim", "qk_head_dim", "num_key_value_heads"}
    heads, width, rotary = hf.integer("num_attention_heads"), hf.integer("hidden_size"), hf.integer("qk_rope_head_dim")
    q_rank, kv_rank, key = hf.maybe("q_lora_rank", stated=True), hf.integer("kv_lora_rank", 256), hf.integer("qk_nope_head_dim", 64)
    value, bias = hf.maybe("v_head_dim") or width // heads, hf.flag("attention_bias", False)
    return c.Latent(heads, q_rank, kv_rank, key, value, rope(hf, rotary), bias, scale=(key + rotary) ** -0.5 * across_mscale(hf))


def config(hf: Fields) -> c.Config:
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"), bias=hf.flag("mlp_bias", False))
    return minicpm.decoder(hf, latent(hf), mlp)


FAMILY = Family(
    config=config,
    rules=(*llama.ENDS, *llama.NORMS, *deepseek_v3.LATENT, *llama.DENSE),
    ignored=llama.IGNORED,
    architecture="MiniCPM3ForCausalLM",
)
