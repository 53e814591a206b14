"""Falcon-H1 (arXiv 2507.22448): attention and Mamba-2 read the same rows side by side, with a multiplier at every part."""

from dataclasses import replace
from typing import Any

from pellucid import config as c
from pellucid.families import llama, mamba_fields
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule

# of training and of kernels, or kept from the configuration that these files were made of
UNUSED = """
    attn_layer_indices mamba_chunk_size mamba_expand mlp_expansion_factor num_logits_to_keep time_step_floor time_step_max time_step_min
    time_step_rank
"""
NORMS = {(False, True): "none", (False, False): "none", (True, True): "then gated", (True, False): "of gated"}
AROUND = {
    "attn.in": "attention_in_multiplier",
    "attn": "attention_out_multiplier",
    "mamba.in": "ssm_in_multiplier",
    "mamba": "ssm_out_multiplier",
}


def multipliers(hf: Fields, name: str, count: int) -> tuple[float, ...]:
    """Return a list of `count` multipliers, () without one, or where all are 1."""
    if hf.get(name, None) is None:
        return ()
    values = hf.numbers(name)
    hf.relate(len(values) == count, f"len({name}) == {count}", found=len(values))
    return values if any(n != 1.0 for n in values) else ()


def mamba(hf: Fields) -> c.Mamba2:
    """Return Mamba-2's part, whose width is its own, or `mamba_expand` times the model's."""
    inner = hf.integer("mamba_d_ssm", 1024)
    if hf.values.get("mamba_d_ssm", inner) is None:
        inner = hf.integer("hidden_size") * hf.integer("mamba_expand", 2)
    norm, factors = NORMS[hf.flag("mamba_rms_norm", False), hf.flag("mamba_norm_before_gate", True)], multipliers(hf, "ssm_multipliers", 5)
    made = replace(mamba_fields.mamba2(hf, inner, "mamba_d_ssm"), gated_norm=norm, factors=factors)
    hf.relate(hf.flag("projectors_bias", False) == made.bias, "projectors_bias == mamba_proj_bias", mamba_proj_bias=made.bias)
    return made


def config(hf: Fields) -> c.Config:
    hf.read |= {*UNUSED.split()}
    hf.fixed("mamba_use_mlp", True)
    hf.maybe("num_key_value_heads", stated=True)
    layers, attn = hf.integer("num_hidden_layers", high=100_000), replace(llama.attention(hf), key_factor=hf.number("key_multiplier", 1.0))
    gate, down = multipliers(hf, "mlp_multipliers", 2) or (1.0, 1.0)
    act, bias = hf.choice("hidden_act", ACTS, "silu"), hf.flag("mlp_bias", False)
    mlp = c.Mlp(hf.integer("intermediate_size"), act, bias=bias, gate_factor=gate)
    factors = (*((path, hf.number(name, 1.0)) for path, name in AROUND.items()), ("ffn", down))
    block = c.Layer(attn, mlp, second=mamba(hf), factors=tuple(pair for pair in factors if pair[1] != 1.0))
    ends: dict[str, Any] = {"embed_scale": hf.number("embedding_multiplier", 1.0), "logit_factor": hf.number("lm_head_multiplier", 1.0)}
    return replace(llama.decoder(hf, (block,) * layers, eps=1e-5), **ends)


LAYER = "model.layers.{i}."
ENDS = (Rule("model.embed_tokens.*", "embed.*"), Rule("model.final_layernorm.*", "norm.*"), Rule("lm_head.*", "head.*"))
RULES = (
    *ENDS,
    Rule(f"{LAYER}input_layernorm.*", "layers.{i}.attn_norm.*"),
    Rule(f"{LAYER}pre_ff_layernorm.*", "layers.{i}.ffn_norm.*"),
    *llama.ATTENTION,
    *mamba_fields.rules(f"{LAYER}mamba"),
    *(Rule(f"{LAYER}feed_forward.{n}_proj.*", f"layers.{{i}}.ffn.{n}.*") for n in ("gate", "up", "down")),
)

FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, architecture="FalconH1ForCausalLM", does_more=("mamba", "ffn"))
