"""DeepSeek-V3 and R1 (arXiv 2412.19437): latent attention; dense layers, then experts chosen in groups beside a shared one."""

import re
from collections.abc import Container
from itertools import count, takewhile

from pellucid import config as c
from pellucid.families import llama, moe_fields
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import STACKED, Rule
from pellucid.families.rope import across_mscale, rope


def latent(hf: Fields) -> c.Latent:
    """Return MLA's ranks and widths. `head_dim` in these files is the rotary width, and `num_key_value_heads` means nothing."""
    hf.read |= {"head_dim", "qk_head_dim", "num_key_value_heads", "num_nextn_predict_layers", "num_mtp_layers"}
    key, rotary = hf.integer("qk_nope_head_dim"), hf.integer("qk_rope_head_dim")
    scale = (key + rotary) ** -0.5 * across_mscale(hf)
    turn = rope(hf, rotary, interleaved=hf.flag("rope_interleave", True))
    heads, q_rank, kv_rank = hf.integer("num_attention_heads"), hf.maybe("q_lora_rank", stated=True), hf.integer("kv_lora_rank")
    return c.Latent(heads, q_rank, kv_rank, key, hf.integer("v_head_dim"), turn, hf.flag("attention_bias", False), scale=scale)


def moe(hf: Fields, *silent: int, normalised: bool = True, shared: str = "n_shared_experts") -> c.Moe:
    """Return DeepSeek-V3's experts.

    silent: the number of groups and of those kept, where a file does not say.  normalised: whether shares are, where it does not.
    shared: the field of the number of shared experts.
    """
    hf.fixed("scoring_func", "sigmoid", "noaux_tc")  # dots.llm1's files give the method's name here too
    hf.fixed("topk_method", "noaux_tc")
    hf.fixed("moe_layer_freq", 1)
    experts, chosen, width = moe_fields.experts(hf), hf.integer("num_experts_per_tok"), hf.integer("moe_intermediate_size")
    groups, kept = moe_fields.groups(hf, experts, chosen, *silent)
    return c.Moe(
        experts,
        chosen,
        width,
        shared=hf.integer(shared, low=0) * width,
        groups=groups,
        groups_chosen=kept,
        scale=hf.number("routed_scaling_factor"),
        normalised=hf.flag("norm_topk_prob", normalised),
        act=hf.choice("hidden_act", ACTS, "silu"),
    )


def config(hf: Fields) -> c.Config:
    return llama.decoder(hf, moe_fields.dense_first(hf, latent(hf), moe(hf)))


LATENT = (
    *(Rule(f"model.layers.{{i}}.self_attn.{n}_proj.*", f"layers.{{i}}.attn.{n}.*") for n in ("q", "q_a", "q_b", "kv_b", "o")),
    Rule("model.layers.{i}.self_attn.kv_a_proj_with_mqa.*", "layers.{i}.attn.kv_a.*"),
    Rule("model.layers.{i}.self_attn.q_a_layernorm.*", "layers.{i}.attn.q_norm.*"),
    Rule("model.layers.{i}.self_attn.kv_a_layernorm.*", "layers.{i}.attn.kv_norm.*"),
)
EXPERTS = (
    Rule("model.layers.{i}.mlp.gate.weight", "layers.{i}.ffn.router.weight"),
    Rule("model.layers.{i}.mlp.gate.e_score_correction_bias", "layers.{i}.ffn.correction"),
    *(Rule(f"model.layers.{{i}}.mlp.experts.{{e}}.{n}_proj.weight", f"layers.{{i}}.ffn.{n}", STACKED) for n in ("gate", "up", "down")),
    *(Rule(f"model.layers.{{i}}.mlp.shared_experts.{n}_proj.*", f"layers.{{i}}.ffn.shared.{n}.*") for n in ("gate", "up", "down")),
)
RULES = (*llama.ENDS, *llama.NORMS, *LATENT, *llama.DENSE, *EXPERTS)


def ignored(cfg: c.Config, names: Container[str]) -> tuple[str, ...]:
    """Return patterns of ignored names, the multi-token prediction modules behind the last layer among them, known by their eh_proj."""
    behind = (f"model.layers.{i}" for i in count(len(cfg.layers)))
    extra = takewhile(lambda at: f"{at}.eh_proj.weight" in names, behind)
    return (*llama.IGNORED, *(rf"{re.escape(at)}\..*" for at in extra))


FAMILY = Family(config=config, rules=RULES, ignored=ignored, architecture="DeepseekV3ForCausalLM")
