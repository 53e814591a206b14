"""Phi-1, 1.5 and 2 (arXiv 2306.11644, 2309.05463): attention and a GELU network side by side behind one norm, biases everywhere, the
head's included; a part of each head turns.
"""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule


def config(hf: Fields) -> c.Config:
    hf.fixed("attention_bias", True)
    attn = replace(llama.attention(hf, hf.flag("qk_layernorm", False), part=0.5), bias=True, out_bias=True)
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "gelu_new"), gated=False, bias=True)
    return c.Config(
        vocab=hf.integer("vocab_size"),
        width=hf.integer("hidden_size"),
        layers=(c.Layer(attn, mlp, order="parallel"),) * hf.integer("num_hidden_layers", high=100_000),
        tied=hf.flag("tie_word_embeddings", False),
        eps=hf.number("layer_norm_eps", 1e-5),
        norm="layer",
        head_bias=True,
        context=hf.maybe("max_position_embeddings"),
    )


LAYER = "model.layers.{i}"
RULES = (
    Rule("model.embed_tokens.*", "embed.*"),
    Rule(f"{LAYER}.input_layernorm.*", "layers.{i}.attn_norm.*"),
    *llama.ATTENTION[:3],
    Rule(f"{LAYER}.self_attn.dense.*", "layers.{i}.attn.o.*"),
    *(Rule(f"{LAYER}.self_attn.{n}_layernorm.*", f"layers.{{i}}.attn.{n}_norm.*") for n in "qk"),
    Rule(f"{LAYER}.mlp.fc1.*", "layers.{i}.ffn.up.*"),
    Rule(f"{LAYER}.mlp.fc2.*", "layers.{i}.ffn.down.*"),
    Rule("model.final_layernorm.*", "norm.*"),
    Rule("lm_head.*", "head.*"),
)

FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, architecture="PhiForCausalLM")
