"""OLMo 2 (arXiv 2501.00656): Llama with a norm of what each part made, and one of all heads' queries and of all their keys."""

from dataclasses import replace
from typing import Any

from pellucid import config as c
from pellucid.families import llama, qwen3
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule


def attention(hf: Fields, **turn: Any) -> c.Attention:
    return replace(llama.attention(hf, qk_norm=True, **turn), qk_joint=True)


def decoder(hf: Fields, attn: list[c.Attention]) -> c.Config:
    """Return the Config of one layer for each of these attentions."""
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"))
    return llama.decoder(hf, tuple(c.Layer(one, mlp, order="after") for one in attn), eps=1e-5)


def config(hf: Fields) -> c.Config:
    return decoder(hf, [attention(hf)] * hf.integer("num_hidden_layers", high=100_000))


NORMS = (
    Rule("model.layers.{i}.post_attention_layernorm.*", "layers.{i}.attn_norm.*"),
    Rule("model.layers.{i}.post_feedforward_layernorm.*", "layers.{i}.ffn_norm.*"),
)
RULES = (*llama.ENDS, *NORMS, *llama.ATTENTION, *llama.DENSE, *qwen3.QK_NORMS)

FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, architecture="Olmo2ForCausalLM")
