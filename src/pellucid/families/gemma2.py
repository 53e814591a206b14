"""Gemma 2 (arXiv 2408.00118): Gemma with a norm before and after each part, soft limits, and every other layer windowed."""

from dataclasses import replace
from typing import Any

from pellucid import config as c
from pellucid.families import gemma, llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule

FULL, SLIDING = KINDS = ("full_attention", "sliding_attention")


def kinds(hf: Fields, every: int) -> list[str]:
    """Return each layer's kind; without `layer_types`, each `every`-th layer is full and the others slide."""
    layers = hf.integer("num_hidden_layers", high=100_000)
    if "layer_types" in hf:
        return hf.texts("layer_types", layers, KINDS)
    return [SLIDING if (i + 1) % every else FULL for i in range(layers)]


def mlp(hf: Fields) -> c.Mlp:
    act = hf.choice("hidden_activation", ACTS, "gelu_pytorch_tanh")
    gemma.same(hf, "hidden_act", act, ACTS)
    return c.Mlp(hf.integer("intermediate_size"), act)


def attention(hf: Fields, **turn: Any) -> c.Attention:
    """Return Gemma's attention with scores divided by the root of `query_pre_attn_scalar` instead of the head's width."""
    return replace(gemma.attention(hf, **turn), scale=hf.number("query_pre_attn_scalar", 256) ** -0.5)


def config(hf: Fields) -> c.Config:
    attn = replace(attention(hf), cap=hf.optional("attn_logit_softcapping", 50.0))
    by_kind = {FULL: attn, SLIDING: replace(attn, window=hf.length("sliding_window", 4096))}
    layers = tuple(c.Layer(by_kind[kind], mlp(hf), order="sandwich") for kind in kinds(hf, 2))
    return replace(gemma.decoder(hf, layers), logit_cap=hf.optional("final_logit_softcapping", 30.0))


# post_attention_layernorm is the norm of attention's output here; in Llama it is the norm of the feed-forward part's input
NORMS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "attn_post_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "ffn_post_norm",
}
RULES = (
    *llama.ENDS,
    *(Rule(f"model.layers.{{i}}.{theirs}.*", f"layers.{{i}}.{ours}.*") for theirs, ours in NORMS.items()),
    *llama.ATTENTION,
    *llama.DENSE,
)

FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, architecture="Gemma2ForCausalLM")
