"""OLMo Hybrid (Ai2, 2026): Gated DeltaNet behind norms in three of four layers, OLMo 2's attention in the fourth, mostly without rope."""

from collections.abc import Iterator
from dataclasses import replace

from pellucid import config as c
from pellucid.families import llama, olmo2, qwen3
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import CHANNELS, Rule
from pellucid.families.qwen3_next import DELTA, FULL, KINDS
from pellucid.families.rope import settings


def kinds(hf: Fields) -> list[str]:
    """Return each layer's kind: listed, or attention in every fourth, in the last if there is no fourth. Both kinds have to be there."""
    layers = hf.integer("num_hidden_layers", high=100_000)
    each = [DELTA if (i + 1) % 4 and (i + 1 < layers or layers > 3) else FULL for i in range(layers)]
    if "layer_types" in hf:
        each = hf.texts("layer_types", layers, KINDS)
    hf.relate({*each} == {*KINDS}, f"layer_types: {' and '.join(KINDS)}", layer_types=each)
    return each


def attention(hf: Fields) -> c.Attention:
    """Return OLMo 2's attention; it has no rotary positions where their base is null."""
    attn, scaling = olmo2.attention(hf), settings(hf)
    stated = scaling if scaling is not None and "rope_theta" in scaling.values else hf
    if stated.values.get("rope_theta", 10_000.0) is not None:
        return attn
    for name in ("rope_type", "type"):
        if scaling is not None:
            scaling.fixed(name, "default")
    return replace(attn, rope=None)


def delta(hf: Fields, act: str) -> c.GatedDelta:
    """Return the part with a state, as wide as attention's fields say where its own are missing."""
    heads, width = hf.integer("num_attention_heads"), hf.integer("hidden_size")
    key_heads, value_heads = hf.integer("linear_num_key_heads", heads), hf.integer("linear_num_value_heads", heads)
    key = hf.integer("linear_key_head_dim", int(0.75 * width / key_heads))
    value, rows = hf.integer("linear_value_head_dim", 2 * key), hf.integer("linear_conv_kernel_dim", 4, high=4096)
    fits = value_heads % key_heads == 0
    hf.relate(fits, "linear_num_value_heads % linear_num_key_heads == 0", value_heads=value_heads, key_heads=key_heads)
    hf.read |= {f"linear_{name}" for name in ("a_log_min", "a_log_max", "dt_min", "dt_max", "dt_init_floor")}  # of the first weights
    most = 2.0 if hf.flag("linear_allow_neg_eigval", True) else 1.0
    return c.GatedDelta(key_heads, key, value_heads, value, rows, act, most, 1e-5)


def config(hf: Fields) -> c.Config:
    act = hf.choice("hidden_act", ACTS, "silu")
    mlp = c.Mlp(hf.integer("intermediate_size"), act)
    by_kind = {DELTA: c.Layer(delta(hf, act), mlp), FULL: c.Layer(attention(hf), mlp, order="after")}
    return llama.decoder(hf, tuple(by_kind[kind] for kind in kinds(hf)))


LAYER = "model.layers.{i}."
STATES = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "z": "g_proj", "a": "a_proj", "b": "b_proj", "o": "o_proj", "norm": "o_norm"}
STATE_RULES = (
    *(Rule(f"{LAYER}linear_attn.{theirs}.weight", f"layers.{{i}}.delta.{ours}.weight") for ours, theirs in STATES.items()),
    *(Rule(f"{LAYER}linear_attn.{n}_conv1d.weight", (f"layers.{{i}}.delta.{n}_kernel",), CHANNELS) for n in "qkv"),
    Rule(f"{LAYER}linear_attn.A_log", "layers.{i}.delta.log_rate"),
    Rule(f"{LAYER}linear_attn.dt_bias", "layers.{i}.delta.rate_bias"),
)


def norms(cfg: c.Config) -> Iterator[Rule]:
    """Yield the rules of the norms, one name of which means another place in layers with a state."""
    for i, layer in enumerate(cfg.layers):
        state = layer.attn.part == "delta"
        places = {"attention_layer_norm": "delta_norm", "feedforward_layer_norm": "ffn_norm"}
        for theirs, ours in (
            places if state else {"feedforward_layer_norm": "attn_norm", "post_feedforward_layernorm": "ffn_norm"}
        ).items():
            yield Rule(f"model.layers.{i}.{theirs}.*", f"layers.{i}.{ours}.*")


def rules(cfg: c.Config) -> tuple[Rule, ...]:
    return (*llama.ENDS, *norms(cfg), *llama.ATTENTION, *llama.DENSE, *qwen3.QK_NORMS, *STATE_RULES)


def respell(name: str) -> str:
    """Return a name as files have it, in place of transformers' names in memory."""
    name = name.replace(".input_layernorm.", ".attention_layer_norm.")
    return name.replace(".post_attention_layernorm.", ".feedforward_layer_norm.")


FAMILY = Family(config=config, rules=rules, ignored=llama.IGNORED, respell=respell, architecture="OlmoHybridForCausalLM")
