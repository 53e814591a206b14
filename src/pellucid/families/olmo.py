"""OLMo 1 (arXiv 2402.00838): Llama with norms that learn nothing, and optionally queries, keys and values between two limits."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def config(hf: Fields) -> c.Config:
    attn = replace(llama.attention(hf), clip=hf.optional("clip_qkv"))
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"))
    return c.Config(
        vocab=hf.integer("vocab_size"),
        width=hf.integer("hidden_size"),
        layers=(c.Layer(attn, mlp),) * hf.integer("num_hidden_layers", high=100_000),
        tied=hf.flag("tie_word_embeddings", False),
        norm="layer, no weight",
        context=hf.maybe("max_position_embeddings"),
    )


RULES = (*llama.ENDS[::2], *llama.ATTENTION, *llama.DENSE)

FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, architecture="OlmoForCausalLM")
