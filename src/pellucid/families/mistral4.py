"""Mistral Small 4 (Mistral AI, 2026): DeepSeek-V3's latent attention, Ministral 3's growing queries, experts by a softmax."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import deepseek_v3, llama, ministral3, moe_fields
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import FUSED, Rule
from pellucid.families.rope import settings


def latent(hf: Fields) -> c.Latent:
    """Return MLA whose queries grow behind the context of the first training."""
    attn, scaling = deepseek_v3.latent(hf), settings(hf)
    assert scaling is not None
    share = attn.rope.width / (attn.key + attn.rope.width)
    stated = scaling.number("partial_rotary_factor", hf.number("partial_rotary_factor", share))
    scaling.relate(abs(stated - share) < 1e-6, "partial_rotary_factor == qk_rope_head_dim / qk_head_dim", stated=stated, share=share)
    return replace(attn, grows=ministral3.temper(hf))


def moe(hf: Fields) -> c.Moe:
    """Return experts chosen by a softmax in groups, a group as good as its two best, beside the shared ones."""
    free = moe_fields.by_softmax(hf, "moe_intermediate_size", normalised=hf.flag("norm_topk_prob", True))
    groups, kept = moe_fields.groups(hf, free.experts, free.chosen, 1)
    shared, scale = hf.integer("n_shared_experts", low=0) * free.width, hf.number("routed_scaling_factor", 1.0)
    return replace(free, shared=shared, groups=groups, groups_chosen=kept, scale=scale)


def config(hf: Fields) -> c.Config:
    hf.get("rope_parameters" if "rope_scaling" not in hf else "rope_scaling")
    layers, dense = hf.integer("num_hidden_layers", high=100_000), hf.integer("first_k_dense_replace", 0, low=0)
    attn, experts = latent(hf), moe(hf)
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"))
    return llama.decoder(hf, tuple(c.Layer(attn, mlp if i < dense else experts) for i in range(layers)))


MLP = "model.layers.{i}.mlp"
EXPERTS = (
    Rule(f"{MLP}.gate.weight", "layers.{i}.ffn.router.weight"),
    Rule(f"{MLP}.experts.gate_up_proj", ("layers.{i}.ffn.gate", "layers.{i}.ffn.up"), FUSED),
    Rule(f"{MLP}.experts.down_proj", "layers.{i}.ffn.down"),
    *(Rule(f"{MLP}.shared_experts.{n}_proj.*", f"layers.{{i}}.ffn.shared.{n}.*") for n in ("gate", "up", "down")),
)
RULES = (*llama.ENDS, *llama.NORMS, *deepseek_v3.LATENT, *llama.DENSE, *EXPERTS)

FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, architecture="Mistral4ForCausalLM")
