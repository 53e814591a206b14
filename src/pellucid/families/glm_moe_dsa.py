"""GLM-5 (Z.ai, 2026): DeepSeek-V3.2's sparse attention and experts; its indexer turns pairs side by side."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import deepseek_v3, deepseek_v32, llama
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def config(hf: Fields) -> c.Config:
    layers = hf.integer("num_hidden_layers", high=100_000)
    hf.fixed("mlp_bias", False)
    if "indexer_types" in hf:
        hf.texts("indexer_types", layers, ("full",))  # "shared" layers would take the choice of the layer below
    hf.fixed("index_topk_freq", 1)
    hf.read |= {"index_skip_topk_offset"}  # which layers an `index_topk_freq` of 2 and more leaves out
    hf.fixed("index_topk_pattern", "F" * layers, ["full"] * layers)
    hf.fixed("indexer_rope_interleave", True)
    attn = deepseek_v32.latent(hf, heads=32)
    assert attn.index is not None
    attn, moe = replace(attn, index=replace(attn.index, side_by_side=True)), deepseek_v3.moe(hf, 1)
    return llama.decoder(hf, deepseek_v32.layers(hf, attn, moe), eps=1e-5)


FAMILY = Family(config=config, rules=deepseek_v32.RULES, ignored=deepseek_v3.ignored, architecture="GlmMoeDsaForCausalLM")
