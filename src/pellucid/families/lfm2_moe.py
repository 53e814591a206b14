"""LFM2 with experts (LFM2-8B-A1B): after the first dense layers, experts chosen by DeepSeek-V3's corrected scores, without groups."""

from pellucid import config as c
from pellucid.families import lfm2, moe_fields
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import STACKED, Rule


def moe(hf: Fields) -> c.Moe:
    count, chosen = moe_fields.experts(hf), hf.integer("num_experts_per_tok", 4)
    hf.relate(chosen <= count, "num_experts_per_tok <= experts", num_experts_per_tok=chosen, experts=count)
    return c.Moe(
        count,
        chosen,
        hf.integer("moe_intermediate_size"),
        scale=hf.number("routed_scaling_factor", 1.0),
        normalised=hf.flag("norm_topk_prob", True),
        corrected=hf.flag("use_expert_bias", True),
        least=1e-6,
    )


def config(hf: Fields) -> c.Config:
    mlp, experts, dense = c.Mlp(hf.integer("intermediate_size", 7168)), moe(hf), hf.integer("num_dense_layers", 2, low=0)
    kinds = hf.texts("layer_types", hf.integer("num_hidden_layers", high=100_000), lfm2.KINDS)
    return lfm2.decoder(hf, tuple(c.Layer(mixer, mlp if i < dense else experts) for i, mixer in enumerate(lfm2.mixers(hf, kinds))))


FFN = f"{lfm2.LAYER}feed_forward."
EXPERTS = (
    Rule(f"{FFN}gate.weight", "layers.{i}.ffn.router.weight"),
    Rule(f"{FFN}expert_bias", "layers.{i}.ffn.correction"),
    *(Rule(f"{FFN}experts.{{e}}.{w}.weight", f"layers.{{i}}.ffn.{n}", STACKED) for n, w in lfm2.WAYS.items()),
)

FAMILY = Family(config=config, rules=(*lfm2.RULES, *EXPERTS), architecture="Lfm2MoeForCausalLM")
