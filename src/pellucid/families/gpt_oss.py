"""gpt-oss (arXiv 2508.10925): grouped heads with a sink each, every other layer windowed, experts with biases and a clamped gate."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import llama
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import EXPERTS_TURNED, PAIRED, Rule

KINDS = ("full_attention", "sliding_attention")


def config(hf: Fields) -> c.Config:
    hf.fixed("swiglu_limit", 7.0)
    hf.fixed("swiglu_alpha", 1.702)
    hf.fixed("hidden_act", "silu")
    hf.maybe("num_key_value_heads", stated=True)
    layers, window = hf.integer("num_hidden_layers", high=100_000), hf.length("sliding_window", 128)
    if "rope_scaling" not in hf:
        hf.get("rope_parameters")
    attn = replace(llama.attention(hf, bias=True, head=hf.integer("head_dim", 64), theta=150_000.0), sinks=True)
    experts, chosen = hf.integer("num_local_experts"), hf.integer("num_experts_per_tok")
    hf.relate(chosen <= experts, "num_experts_per_tok <= num_local_experts", num_experts_per_tok=chosen, num_local_experts=experts)
    hf.fixed("experts_per_token", chosen)
    hf.read |= {"initial_context_length"}  # told again by original_max_position_embeddings
    moe = c.Moe(experts, chosen, hf.integer("intermediate_size"), affinity="softmax", corrected=False, bias=True, act="clamped")
    kinds = hf.texts("layer_types", layers, KINDS) if "layer_types" in hf else [KINDS[(i + 1) % 2] for i in range(layers)]
    blocks = tuple(c.Layer(replace(attn, window=window if kind == KINDS[1] else None), moe) for kind in kinds)
    return llama.decoder(hf, blocks, eps=1e-5)


RULES = (
    *llama.ENDS,
    *llama.NORMS,
    *llama.ATTENTION,
    Rule("model.layers.{i}.self_attn.sinks", "layers.{i}.attn.sinks"),
    Rule("model.layers.{i}.mlp.router.*", "layers.{i}.ffn.router.*"),
    Rule("model.layers.{i}.mlp.experts.gate_up_proj", ("layers.{i}.ffn.gate", "layers.{i}.ffn.up"), PAIRED),
    Rule("model.layers.{i}.mlp.experts.gate_up_proj_bias", ("layers.{i}.ffn.gate_bias", "layers.{i}.ffn.up_bias"), PAIRED),
    Rule("model.layers.{i}.mlp.experts.down_proj", "layers.{i}.ffn.down", EXPERTS_TURNED),
    Rule("model.layers.{i}.mlp.experts.down_proj_bias", "layers.{i}.ffn.down_bias"),
)

FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, architecture="GptOssForCausalLM")
