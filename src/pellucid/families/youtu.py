"""Youtu-LLM 2B (arXiv 2512.24618): DeepSeek-V3's latent attention, and one network in every layer."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import deepseek_v3, llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def config(hf: Fields) -> c.Config:
    hf.read.add("embedding_initializer_range")
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"))
    layers = (c.Layer(deepseek_v3.latent(hf), mlp),) * hf.integer("num_hidden_layers", high=100_000)
    return replace(llama.decoder(hf, layers), tied=hf.flag("tie_word_embeddings", True))


FAMILY = Family(
    config=config,
    rules=(*llama.ENDS, *llama.NORMS, *deepseek_v3.LATENT, *llama.DENSE),
    ignored=llama.IGNORED,
    architecture="YoutuForCausalLM",
)
