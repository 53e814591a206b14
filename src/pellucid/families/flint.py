"""Flint (Recursive, 2026): Qwen3's attention with a sink of each head, that turns in windowed layers alone, and experts by sigmoids."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import gemma2, llama, moe_fields, qwen2_moe, qwen3
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule


def kinds(hf: Fields, layers: int) -> list[str]:
    """Return each layer's kind: listed, or full in the first two, in each fourth from there on and in the last."""
    if "layer_types" in hf:
        return hf.texts("layer_types", layers, gemma2.KINDS)
    return [gemma2.FULL if i < 2 or i % 4 == 1 or i == layers - 1 else gemma2.SLIDING for i in range(layers)]


def config(hf: Fields) -> c.Config:
    layers = hf.integer("num_hidden_layers", high=100_000)
    hf.maybe("num_key_value_heads", stated=True)
    if "mlp_only_layers" not in hf:
        hf.values = {**hf.values, "mlp_only_layers": list(range(min(2, layers)))}
    near = replace(llama.attention(hf, qk_norm=True, head=128), sinks=True, window=hf.length("sliding_window", 513))
    full = replace(near, rope=None, window=None)
    shared, normalised = hf.integer("shared_expert_intermediate_size", 1024, low=0), hf.flag("norm_topk_prob", True)
    experts = moe_fields.by_softmax(hf, "moe_intermediate_size", shared=shared, normalised=normalised)
    experts = replace(experts, affinity="sigmoid", least=0.0)
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"))
    pairs = zip(kinds(hf, layers), moe_fields.sparse(hf, layers), strict=True)
    return llama.decoder(hf, tuple(c.Layer(near if kind == gemma2.SLIDING else full, experts if has else mlp) for kind, has in pairs))


RULES = (
    *qwen3.RULES,
    Rule("model.layers.{i}.self_attn.softmax_offset", "layers.{i}.attn.sinks"),
    *qwen2_moe.EXPERTS,
    *qwen2_moe.SHARED,
)


def respell(name: str) -> str:
    """Return a name as published files have it, in place of transformers' name in memory."""
    return name.replace(".self_attn.sinks", ".self_attn.softmax_offset")


FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, respell=respell, architecture="FlintForCausalLM")
