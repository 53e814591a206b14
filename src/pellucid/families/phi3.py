"""Phi-3 and Phi-4 (arXiv 2404.14219, 2412.08905): Llama's block with fused products, a window, and LongRoPE."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import SPLIT, Rule
from pellucid.families.rope import kind, settings

# told by some files, and known to transformers' model at these values alone
ABSENT = {"attention_bias": False, "full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False}


def config(hf: Fields) -> c.Config:
    for name, only in ABSENT.items():
        hf.fixed(name, only)
    long = False
    if scaling := settings(hf):
        for name in ("rope_type", "type"):
            scaling.fixed(name, "default", "longrope", "su")
        long = kind(scaling) != "default"
    # it stands beside the settings of long texts, and is told where they are
    hf.maybe("original_max_position_embeddings", stated=long)
    attn = replace(llama.attention(hf, part=1.0), window=hf.maybe("sliding_window"))
    layer = c.Layer(attn, c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu")))
    return llama.decoder(hf, (layer,) * hf.integer("num_hidden_layers", high=100_000), eps=1e-5)


FUSED = (
    Rule("model.layers.{i}.mlp.gate_up_proj.*", ("layers.{i}.ffn.gate.*", "layers.{i}.ffn.up.*"), SPLIT),
    Rule("model.layers.{i}.mlp.down_proj.*", "layers.{i}.ffn.down.*"),
)
RULES = (
    *llama.ENDS,
    *llama.NORMS,
    Rule("model.layers.{i}.self_attn.qkv_proj.*", tuple(f"layers.{{i}}.attn.{n}.*" for n in "qkv"), SPLIT),
    Rule("model.layers.{i}.self_attn.o_proj.*", "layers.{i}.attn.o.*"),
    *FUSED,
)

FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, architecture="Phi3ForCausalLM")
