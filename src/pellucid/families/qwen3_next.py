"""Qwen3-Next (2025): Gated DeltaNet in three of four layers, gated attention in the fourth, and many small experts."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import llama, qwen2_moe, qwen3
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import CHANNELS, Rule, grouped

DELTA, FULL = KINDS = ("linear_attention", "full_attention")
LINEAR = {"num_key_heads": 16, "key_head_dim": 128, "num_value_heads": 32, "value_head_dim": 128, "conv_kernel_dim": 4}


def kinds(hf: Fields) -> list[str]:
    """Return each layer's kind: listed, or attention in every `full_attention_interval`-th."""
    layers, every = hf.integer("num_hidden_layers", high=100_000), hf.integer("full_attention_interval", 4)
    if hf.get("layer_types", None) is not None:
        return hf.texts("layer_types", layers, KINDS)
    return [DELTA if (i + 1) % every else FULL for i in range(layers)]


def mixers(hf: Fields) -> list[c.AnyAttention]:
    """Return what mixes the rows of each layer, by its kind."""
    hf.maybe("num_key_value_heads", stated=True)
    attn = replace(llama.attention(hf, qk_norm=True, head=256, part=0.25), gated=True)
    key_heads, key, value_heads, value, rows = (hf.integer(f"linear_{name}", missing) for name, missing in LINEAR.items())
    delta = c.GatedDelta(key_heads, key, value_heads, value, rows, hf.choice("hidden_act", ACTS, "silu"))
    fits = value_heads % key_heads == 0
    hf.relate(fits, "linear_num_value_heads % linear_num_key_heads == 0", value_heads=value_heads, key_heads=key_heads)
    return [delta if kind == DELTA else attn for kind in kinds(hf)]


def decoder(hf: Fields, layers: tuple[c.Layer, ...]) -> c.Config:
    """Return the Config around `layers`, with norms whose weights count from 1."""
    return replace(llama.decoder(hf, layers), norm="rms offset")


def config(hf: Fields) -> c.Config:
    shared = hf.integer("shared_expert_intermediate_size")
    return decoder(hf, qwen2_moe.layers(hf, mixers(hf), normalised=True, shared=shared, shared_gate=True))


LAYER = "model.layers.{i}."
DELTA_RULES = (
    Rule(f"{LAYER}input_layernorm.*", "layers.{i}.delta_norm.*"),
    Rule(f"{LAYER}linear_attn.conv1d.weight", tuple(f"layers.{{i}}.delta.{n}_kernel" for n in "qkv"), CHANNELS),
    Rule(f"{LAYER}linear_attn.A_log", "layers.{i}.delta.log_rate"),
    Rule(f"{LAYER}linear_attn.dt_bias", "layers.{i}.delta.rate_bias"),
    Rule(f"{LAYER}linear_attn.norm.weight", "layers.{i}.delta.norm.weight"),
    Rule(f"{LAYER}linear_attn.out_proj.*", "layers.{i}.delta.o.*"),
)


def gated_attention(cfg: c.Config) -> tuple[Rule, ...]:
    """Return the rules of attention whose queries and gates lie in one tensor, by heads."""
    both = Rule(f"{LAYER}self_attn.q_proj.*", ("layers.{i}.attn.q.*", "layers.{i}.attn.gate.*"), grouped(cfg.heads or 1))
    return (both, *llama.ATTENTION[1:], *qwen3.QK_NORMS)


def fused(cfg: c.Config) -> tuple[Rule, ...]:
    """Return the rules of the products that lie in two tensors, by key heads."""
    groups = next((one.attn.key_heads for one in cfg.layers if isinstance(one.attn, c.GatedDelta)), 1)
    return (
        Rule(f"{LAYER}linear_attn.in_proj_qkvz.*", tuple(f"layers.{{i}}.delta.{n}.*" for n in "qkvz"), grouped(groups)),
        Rule(f"{LAYER}linear_attn.in_proj_ba.*", tuple(f"layers.{{i}}.delta.{n}.*" for n in "ba"), grouped(groups)),
    )


def rules(cfg: c.Config) -> tuple[Rule, ...]:
    return (*gated_attention(cfg), *fused(cfg), *DELTA_RULES, *qwen2_moe.RULES)


IGNORED = (*llama.IGNORED, r"mtp\..*")  # modules behind the last layer, which are another model

FAMILY = Family(config=config, rules=rules, ignored=IGNORED, architecture="Qwen3NextForCausalLM")
