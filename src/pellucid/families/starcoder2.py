"""StarCoder2 (arXiv 2402.19173): Llama's attention with biases and windows, LayerNorms, and a plain GELU network."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule


def config(hf: Fields) -> c.Config:
    bias = hf.flag("use_bias", True)
    hf.maybe("num_key_value_heads", stated=True)
    attn = replace(llama.attention(hf), bias=bias, out_bias=bias, window=hf.maybe("sliding_window"))
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "gelu_pytorch_tanh"), gated=False, bias=bias)
    hf.read |= {"residual_dropout", "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"}  # in training, and of rounding
    hf.fixed("scale_attn_weights", True)
    hf.fixed("layer_norm_epsilon", hf.number("norm_epsilon", 1e-5))
    hf.fixed("mlp_type", "default")
    hf.fixed("norm_type", "layer_norm")
    return c.Config(
        vocab=hf.integer("vocab_size"),
        width=hf.integer("hidden_size"),
        layers=(c.Layer(attn, mlp),) * hf.integer("num_hidden_layers", high=100_000),
        tied=hf.flag("tie_word_embeddings", True),
        eps=hf.number("norm_epsilon", 1e-5),
        norm="layer",
        context=hf.maybe("max_position_embeddings"),
    )


MLP = tuple(Rule(f"model.layers.{{i}}.mlp.{theirs}.*", f"layers.{{i}}.ffn.{n}.*") for theirs, n in (("c_fc", "up"), ("c_proj", "down")))
RULES = (*llama.ENDS, *llama.NORMS, *llama.ATTENTION, *MLP)

FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, architecture="Starcoder2ForCausalLM")
