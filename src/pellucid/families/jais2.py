"""Jais 2 (MBZUAI and Cerebras, 2025): Llama with LayerNorms, biases, and a feed-forward part without a gate that squares what it keeps."""

from pellucid import config as c
from pellucid.families import llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def config(hf: Fields) -> c.Config:
    act, bias = hf.choice("hidden_act", ACTS, "relu2"), hf.flag("mlp_bias", True)
    layer = c.Layer(llama.attention(hf, bias=True), c.Mlp(hf.integer("intermediate_size"), act, gated=False, bias=bias))
    return c.Config(
        vocab=hf.integer("vocab_size"),
        width=hf.integer("hidden_size"),
        layers=(layer,) * hf.integer("num_hidden_layers", high=100_000),
        tied=hf.flag("tie_word_embeddings", False),
        eps=hf.number("layer_norm_eps", 1e-5),
        norm="layer",
        context=hf.maybe("max_position_embeddings"),
    )


FAMILY = Family(config=config, rules=llama.RULES, ignored=llama.IGNORED, architecture="Jais2ForCausalLM")
