"""Solar Open 100B (Upstage, 2026): Llama's attention, and DeepSeek-V3's experts in every layer."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import deepseek_v3, llama
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def config(hf: Fields) -> c.Config:
    hf.maybe("num_key_value_heads", stated=True)
    hf.fixed("first_k_dense_replace", 0)
    hf.read |= {"intermediate_size", "num_nextn_predict_layers"}  # of layers without experts, and of modules behind the last layer
    attn = replace(llama.attention(hf, head=128, theta=1_000_000.0), out_bias=False)
    return llama.decoder(hf, (c.Layer(attn, deepseek_v3.moe(hf, 1)),) * hf.integer("num_hidden_layers", high=100_000), eps=1e-5)


FAMILY = Family(
    config=config,
    rules=(*llama.RULES, *deepseek_v3.EXPERTS),
    ignored=deepseek_v3.ignored,
    architecture="SolarOpenForCausalLM",
)
