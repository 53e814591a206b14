"""GLM-4 9B (arXiv 2406.12793): Llama's block with rotary positions on half a head, interleaved, and biases of q, k and v."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import llama, phi3
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def config(hf: Fields, order: str = "pre") -> c.Config:
    hf.maybe("num_key_value_heads", stated=True)
    attn = llama.attention(hf, bias=True, head=128, interleaved=True, part=0.5)
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"))
    layer = c.Layer(replace(attn, out_bias=False), mlp, order=order)
    return llama.decoder(hf, (layer,) * hf.integer("num_hidden_layers", high=100_000), eps=1.5625e-7)


PARTS = (*llama.ENDS, *llama.ATTENTION, *phi3.FUSED)
RULES = (*PARTS, *llama.NORMS)

FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, architecture="GlmForCausalLM")
