"""GLM-4.7-Flash (Z.ai, 2026): DeepSeek-V3's latent attention and experts, whose dense layers its file lists."""

from pellucid import config as c
from pellucid.families import deepseek_v3, llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def config(hf: Fields) -> c.Config:
    layers, attn, moe = hf.integer("num_hidden_layers", high=100_000), deepseek_v3.latent(hf), deepseek_v3.moe(hf)
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"))
    dense = hf.integer("first_k_dense_replace", 1, low=0)
    kinds = ["dense" if i < dense else "sparse" for i in range(layers)]
    if "mlp_layer_types" in hf:
        kinds = hf.texts("mlp_layer_types", layers, ("dense", "sparse"))
    return llama.decoder(hf, tuple(c.Layer(attn, moe if kind == "sparse" else mlp) for kind in kinds), eps=1e-5)


FAMILY = Family(
    config=config,
    rules=deepseek_v3.RULES,
    ignored=deepseek_v3.ignored,
    architecture="Glm4MoeLiteForCausalLM",
)
