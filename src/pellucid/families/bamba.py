"""Bamba (IBM, Princeton and UIUC, 2024): Mamba-2 in most layers, Llama's attention in a few, where half of a head turns."""

from pellucid import config as c
from pellucid.families import falcon_h1, granitemoehybrid, llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule


def config(hf: Fields) -> c.Config:
    hf.read |= {"num_logits_to_keep", "use_mamba_kernels", "z_loss_coefficient"}
    hf.fixed("partial_rotary_factor", 0.5)  # transformers reads another one in `rope_parameters` alone
    hf.maybe("num_key_value_heads", stated=True)
    attn, scan, layers = llama.attention(hf, part=0.5), granitemoehybrid.mamba(hf), hf.integer("num_hidden_layers", high=100_000)
    hf.fixed("attn_rotary_emb", attn.rope.width if attn.rope else 0)  # the original's name of the width that turns
    attend = () if hf.get("attn_layer_indices", None) is None else hf.indices("attn_layer_indices", layers)
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"), bias=hf.flag("mlp_bias", False))
    return llama.decoder(hf, tuple(c.Layer(attn if i in attend else scan, mlp) for i in range(layers)), eps=1e-5)


RULES = (*falcon_h1.RULES, Rule("model.layers.{i}.input_layernorm.*", "layers.{i}.mamba_norm.*"))

FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, architecture="BambaForCausalLM")
