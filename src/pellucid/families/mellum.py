"""Mellum 2 12B-A2.5B (JetBrains, 2026): Qwen3's attention with another turn in windowed layers, and experts chosen by a softmax."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import gemma2, llama, moe_fields, qwen2_moe, qwen3
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.rope import rope

DENSE, SPARSE = ("dense", "sparse")
UNUSED = {"num_nextn_predict_layers", "num_mtp_layers", "mtp_layer_types", "mtp_mlp_layer_types"}  # a module behind the last layer


def config(hf: Fields) -> c.Config:
    layers, norm = hf.integer("num_hidden_layers", high=100_000), hf.flag("norm_topk_prob", True)
    hf.maybe("num_key_value_heads", stated=True)
    hf.read |= UNUSED
    for name in ("rope_theta", "rope_scaling"):
        hf.fixed(name)  # one turn for both kinds of layers has no meaning
    attn = llama.attention(hf, qk_norm=True, head=128, theta=500_000.0, layer=gemma2.FULL)
    near = replace(attn, rope=rope(hf, attn.width, layer=gemma2.SLIDING), window=hf.length("sliding_window", 1024))
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"))
    moe = moe_fields.by_softmax(hf, "moe_intermediate_size", normalised=norm)
    kinds = hf.texts("layer_types", layers, gemma2.KINDS) if "layer_types" in hf else [gemma2.FULL] * layers
    networks = hf.texts("mlp_layer_types", layers, (DENSE, SPARSE)) if "mlp_layer_types" in hf else [SPARSE] * layers
    pairs = zip(kinds, networks, strict=True)
    return llama.decoder(hf, tuple(c.Layer(near if a == gemma2.SLIDING else attn, moe if f == SPARSE else mlp) for a, f in pairs))


FAMILY = Family(
    config=config,
    rules=(*qwen3.RULES, *qwen2_moe.EXPERTS),
    ignored=(*llama.IGNORED, r"mtp\..*"),
    architecture="MellumForCausalLM",
)
