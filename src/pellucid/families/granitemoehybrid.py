"""Granite 4 (IBM, 2025): Mamba-2 in most layers, Granite's attention in the others, mostly without positions; experts or one network."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import granite, granitemoe, granitemoeshared, llama, mamba_fields, moe_fields
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule

KINDS = {"mamba": "mamba", "linear_attention": "mamba", "attention": "attn", "full_attention": "attn"}


def mamba(hf: Fields) -> c.Mamba2:
    """Return Mamba-2's part. A chunk of the scan changes no number, so its size is not kept."""
    hf.read.add("mamba_chunk_size")
    return mamba_fields.mamba2(hf, hf.integer("hidden_size") * hf.integer("mamba_expand", 2), "mamba_expand * hidden_size")


def mixers(hf: Fields) -> list[c.AnyAttention]:
    """Return what mixes the rows of each layer, by its kind."""
    attn, scan, layers = granite.attention(hf), mamba(hf), hf.integer("num_hidden_layers", high=100_000)
    if not hf.choice("position_embedding_type", {"rope": True, "nope": False}, "nope"):
        attn = replace(attn, rope=None)
    kinds = ["mamba"] * layers if hf.get("layer_types", None) is None else hf.texts("layer_types", layers, KINDS)
    return [scan if KINDS[kind] == "mamba" else attn for kind in kinds]


def feed_forward(hf: Fields) -> c.Mlp | c.Moe:
    """Return experts beside a network that every token visits, or without experts the network alone."""
    shared = hf.integer("shared_intermediate_size", 1024)
    if hf.integer("num_local_experts", 8, low=0):
        return moe_fields.by_softmax(hf, "intermediate_size", shared=shared)
    hf.read |= {"intermediate_size", "num_experts_per_tok"}
    return c.Mlp(shared, hf.choice("hidden_act", ACTS, "silu"))


def config(hf: Fields) -> c.Config:
    hf.fixed("normalization_function", "rmsnorm")
    hf.read.add("init_method")  # of training
    return granite.multiplied(hf, feed_forward(hf), mixers(hf))


LAYER = "model.layers.{i}."


def rules(cfg: c.Config) -> tuple[Rule, ...]:
    network = "layers.{i}.ffn.shared" if cfg.layers[0].ffn.experts else "layers.{i}.ffn"
    return (
        *granitemoe.RULES,
        Rule(f"{LAYER}input_layernorm.*", "layers.{i}.mamba_norm.*"),
        *mamba_fields.rules(f"{LAYER}mamba"),
        *granitemoeshared.shared(network),
    )


FAMILY = Family(config=config, rules=rules, ignored=llama.IGNORED, respell=granitemoe.respell, architecture="GraniteMoeHybridForCausalLM")
