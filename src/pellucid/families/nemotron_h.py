"""Nemotron-H, Nemotron Nano 2 and Nemotron 3 Nano (arXiv 2504.03624, 2508.14444): Mamba-2, a few layers of attention without positions, and
feed-forward parts or experts without a gate, which square what they keep.
"""

from pellucid import config as c
from pellucid.families import moe_fields, part_layers
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule

# of training and of kernels, and of modules behind the last layer, which are another model
UNUSED = """
    chunk_size expand hidden_dropout mamba_ssm_cache_dtype moe_shared_expert_overlap mtp_hybrid_override_pattern mtp_layers_block_type
    n_shared_experts num_logits_to_keep num_nextn_predict_layers rescale_prenorm_residual residual_in_fp32 time_step_floor time_step_limit
    time_step_max time_step_rank use_mamba_kernels
"""
OF_EXPERTS = """
    moe_intermediate_size moe_latent_size moe_shared_expert_intermediate_size n_group n_routed_experts norm_topk_prob num_experts_per_tok
    num_local_experts routed_scaling_factor topk_group
"""


def mamba(hf: Fields) -> c.Mamba2:
    """Return Mamba-2's part, whose dt has a lower limit alone, in transformers as `time_step_min`."""
    heads, groups = hf.integer("mamba_num_heads", 128), hf.integer("n_groups", 8)
    hf.relate(heads % groups == 0, "mamba_num_heads % n_groups == 0", mamba_num_heads=heads, n_groups=groups)
    hf.fixed("mamba_proj_bias", False)
    return c.Mamba2(
        groups=groups,
        state_width=hf.integer("ssm_state_size", 128),
        state_heads=heads,
        row_width=hf.integer("mamba_head_dim", 64),
        rows=hf.integer("conv_kernel", 4, high=4096),
        act=hf.choice("mamba_hidden_act", ACTS, "silu"),
        kernel_bias=hf.flag("use_conv_bias", True),
        bias=hf.flag("use_bias", False),
        least=hf.number("time_step_min", 0.001),
    )


def attention(hf: Fields) -> c.Attention:
    heads, kv_heads = hf.integer("num_attention_heads", 32), hf.integer("num_key_value_heads", 8)
    hf.relate(heads % kv_heads == 0, "num_attention_heads % num_key_value_heads == 0", heads=heads, kv_heads=kv_heads)
    width = hf.integer("head_dim", hf.integer("attention_head_dim", 128))
    hf.fixed("attention_head_dim", width)
    hf.fixed("num_query_groups", kv_heads)
    hf.fixed("attention_bias", False)
    return c.Attention(heads, kv_heads, width)


def experts(hf: Fields, act: str) -> c.Moe:
    """Return DeepSeek-V3's choice of experts, which have no gate, beside a shared one of its own width."""
    hf.fixed("moe_latent_size")  # a narrower row for the experts, as in Nemotron 3 Super
    hf.fixed("mlp_bias", False)
    count, chosen = moe_fields.experts(hf), hf.integer("num_experts_per_tok", 2)
    width, shared = hf.integer("moe_intermediate_size", 7688), hf.integer("moe_shared_expert_intermediate_size", 7688)
    groups, kept = moe_fields.groups(hf, count, chosen)
    scale, normalised = hf.number("routed_scaling_factor", 1.0), hf.flag("norm_topk_prob", True)
    sizes = {"shared": shared, "groups": groups, "groups_chosen": kept, "scale": scale, "normalised": normalised}
    return c.Moe(count, chosen, width, act=act, gated=False, **sizes)  # type: ignore[arg-type]


def config(hf: Fields) -> c.Config:
    text, act = part_layers.pattern(hf), hf.choice("mlp_hidden_act", ACTS, "relu2")
    mlp = c.Mlp(hf.integer("intermediate_size", 21504), act, gated=False, bias=hf.flag("mlp_bias", False))
    mixers: dict[str, c.AnyAttention] = {"M": mamba(hf), "*": attention(hf)}
    networks: dict[str, c.AnyFfn] = {"": c.Without(), "-": mlp}
    if "E" in text:
        networks["E"] = experts(hf, act)
    eps = hf.number("layer_norm_epsilon", 1e-5)
    hf.fixed("rms_norm_eps", eps)
    hf.fixed("tie_word_embeddings", False)
    hf.read |= {*UNUSED.split(), *OF_EXPERTS.split()}
    return c.Config(
        vocab=hf.integer("vocab_size", 131072),
        width=hf.integer("hidden_size", 4096),
        layers=tuple(c.Layer(mixers[mixer], networks[ffn]) for mixer, ffn in part_layers.blocks(text)),
        eps=eps,
        context=hf.maybe("max_position_embeddings"),
    )


ENDS = (Rule("backbone.embeddings.*", "embed.*"), Rule("backbone.norm_f.*", "norm.*"), Rule("lm_head.*", "head.*"))


def rules(cfg: c.Config) -> tuple[Rule, ...]:
    return (*ENDS, *part_layers.rules(cfg, "backbone.layers"))


def respell(name: str) -> str:
    """Return a name as published files have it, in place of transformers' names in memory."""
    return f"backbone.{name.removeprefix('model.')}" if name.startswith("model.") else name


FAMILY = Family(config=config, rules=rules, ignored=(r"mtp\..*",), respell=respell, architecture="NemotronHForCausalLM")
