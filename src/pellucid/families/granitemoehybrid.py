"""Granite 4 (IBM, 2025): Mamba-2 in most layers, Granite's attention in the others, mostly without positions; experts or one network."""

from dataclasses import replace
from math import inf
from typing import Any

from pellucid import config as c
from pellucid.families import granite, granitemoe, llama, moe_fields
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import CHANNEL_BIASES, CHANNELS, SPLIT, Rule

KINDS = {"mamba": "mamba", "linear_attention": "mamba", "attention": "attn", "full_attention": "attn"}
NO_LIMIT = {"__float__": "Infinity"}  # transformers' own spelling of it


def limits(hf: Fields) -> tuple[float, float | None]:
    """Return the limits of dt; the upper one may be infinite."""
    value = hf.get("time_step_limit", [0.0, NO_LIMIT])
    pair: list[Any] = value if isinstance(value, list) and len(value) == 2 else [None, None]
    numbers = pair[:1] if pair[1] in (NO_LIMIT, inf) else pair
    if any(type(n) not in (int, float) for n in numbers) or not 0 <= numbers[0] <= numbers[-1]:
        raise hf.fault("time_step_limit", value, "[a, b], 0 ≤ a ≤ b ≤ ∞")
    return float(numbers[0]), float(numbers[1]) if len(numbers) > 1 else None


def mamba(hf: Fields) -> c.Mamba2:
    """Return Mamba-2's part. A chunk of the scan changes no number, so its size is not kept."""
    width, heads, groups = hf.integer("hidden_size"), hf.integer("mamba_n_heads", 128), hf.integer("mamba_n_groups", 1)
    inner = width * hf.integer("mamba_expand", 2)
    hf.relate(inner % heads == 0, "mamba_expand * hidden_size % mamba_n_heads == 0", inner=inner, mamba_n_heads=heads)
    hf.relate(heads % groups == 0, "mamba_n_heads % mamba_n_groups == 0", mamba_n_heads=heads, mamba_n_groups=groups)
    if hf.get("mamba_d_head", "auto") != "auto":
        head = hf.integer("mamba_d_head")
        hf.relate(head * heads == inner, "mamba_d_head * mamba_n_heads == mamba_expand * hidden_size", mamba_d_head=head, inner=inner)
    hf.read.add("mamba_chunk_size")
    least, most = limits(hf)
    return c.Mamba2(
        groups=groups,
        state_width=hf.integer("mamba_d_state", 256),
        state_heads=heads,
        head=inner // heads,
        rows=hf.integer("mamba_d_conv", 4, high=4096),
        act=hf.choice("hidden_act", ACTS, "silu"),
        kernel_bias=hf.flag("mamba_conv_bias", True),
        bias=hf.flag("mamba_proj_bias", False),
        least=least,
        most=most,
    )


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
MAMBA_RULES = (
    Rule(f"{LAYER}mamba.in_proj.*", tuple(f"layers.{{i}}.mamba.{n}.*" for n in ("z", "x", "b", "c", "dt_in")), SPLIT),
    Rule(f"{LAYER}mamba.conv1d.weight", tuple(f"layers.{{i}}.mamba.{n}_kernel" for n in "xbc"), CHANNELS),
    Rule(f"{LAYER}mamba.conv1d.bias", tuple(f"layers.{{i}}.mamba.{n}_kernel_bias" for n in "xbc"), CHANNEL_BIASES),
    Rule(f"{LAYER}mamba.A_log", "layers.{i}.mamba.log_rate"),
    Rule(f"{LAYER}mamba.dt_bias", "layers.{i}.mamba.rate_bias"),
    Rule(f"{LAYER}mamba.D", "layers.{i}.mamba.skip"),
    Rule(f"{LAYER}mamba.norm.weight", "layers.{i}.mamba.norm.weight"),
    Rule(f"{LAYER}mamba.out_proj.*", "layers.{i}.mamba.o.*"),
)


def rules(cfg: c.Config) -> tuple[Rule, ...]:
    network = "layers.{i}.ffn.shared" if cfg.layers[0].ffn.experts else "layers.{i}.ffn"
    return (
        *granitemoe.RULES,
        Rule(f"{LAYER}input_layernorm.*", "layers.{i}.mamba_norm.*"),
        *MAMBA_RULES,
        Rule(f"{LAYER}shared_mlp.input_linear.*", (f"{network}.gate.*", f"{network}.up.*"), SPLIT),
        Rule(f"{LAYER}shared_mlp.output_linear.*", f"{network}.down.*"),
    )


FAMILY = Family(config=config, rules=rules, ignored=llama.IGNORED, respell=granitemoe.respell, architecture="GraniteMoeHybridForCausalLM")
