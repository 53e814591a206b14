"""K-EXAONE 236B (LG, 2026): EXAONE 4's attention behind norms of what each part reads, and DeepSeek-V3's experts."""

from pellucid import config as c
from pellucid.families import deepseek_v3, exaone4, llama, qwen3
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule

DENSE, SPARSE = KINDS = ("dense", "sparse")
UNUSED = {"num_nextn_predict_layers", "num_mtp_layers", "mtp_loss_weight"}  # a module behind the last layer is another model


def config(hf: Fields) -> c.Config:
    layers, dense = hf.integer("num_hidden_layers", high=100_000), hf.integer("first_k_dense_replace", 1, low=0)
    hf.read |= UNUSED
    kinds = [DENSE if i < dense else SPARSE for i in range(layers)]
    if "mlp_layer_types" in hf:
        kinds = hf.texts("mlp_layer_types", layers, KINDS)
    hf.fixed("is_moe_layer", [kind == SPARSE for kind in kinds])  # how the published file says it again
    hf.fixed("first_last_k_dense_replace", dense)
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"))
    moe = deepseek_v3.moe(hf, 1, shared="num_shared_experts")
    pairs = zip(exaone4.attentions(hf), kinds, strict=True)
    return llama.decoder(hf, tuple(c.Layer(attn, moe if kind == SPARSE else mlp) for attn, kind in pairs), eps=1e-5)


CORRECTION = Rule("model.layers.{i}.mlp.e_score_correction_bias", "layers.{i}.ffn.correction")  # beside the gate, not in it
EXPERTS = tuple(CORRECTION if rule.ours == CORRECTION.ours else rule for rule in deepseek_v3.EXPERTS)


def respell(name: str) -> str:
    """Return a name as published files have it, in place of transformers' names in memory."""
    return name.replace(".mlp.gate.e_score_correction_bias", ".mlp.e_score_correction_bias")


FAMILY = Family(
    config=config,
    rules=(*qwen3.RULES, *EXPERTS),
    ignored=(*llama.IGNORED, r"mtp\..*"),
    respell=respell,
    architecture="ExaoneMoeForCausalLM",
)
