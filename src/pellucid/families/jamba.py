"""Jamba (AI21, arXiv 2403.19887, 2408.12570): Mamba with norms inside, an attention without positions in a few layers, experts in some."""

from pellucid import config as c
from pellucid.families import falcon_h1, llama, mamba_fields, moe_fields
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import STACKED, Rule

UNUSED = "calc_logits_for_entire_prompt num_logits_to_keep use_associative_scan use_mamba_kernels use_mambapy"  # of kernels


def selective(hf: Fields) -> c.Mamba1:
    """Return Mamba-1's part, whose norms have weights."""
    width = hf.integer("hidden_size")
    hf.fixed("mamba_inner_layernorms", True)
    rank = -(-width // 16) if hf.get("mamba_dt_rank", "auto") == "auto" else hf.integer("mamba_dt_rank")
    return c.Mamba1(
        state_width=hf.integer("mamba_d_state", 16),
        row_width=width * hf.integer("mamba_expand", 2),
        rank=rank,
        rows=hf.integer("mamba_d_conv", 4, high=4096),
        act=hf.choice("hidden_act", ACTS, "silu"),
        kernel_bias=hf.flag("mamba_conv_bias", True),
        bias=hf.flag("mamba_proj_bias", False),
        norms="rms",
        norm_eps=hf.number("rms_norm_eps", 1e-6),
    )


def every(hf: Fields, name: str, period: int, offset: int) -> tuple[int, int]:
    """Return a period of layers and the first one's number, from two fields that begin with `name`."""
    period, offset = hf.integer(f"{name}_layer_period", period), hf.integer(f"{name}_layer_offset", offset, low=0)
    hf.relate(offset < period, f"{name}_layer_offset < {name}_layer_period", offset=offset, period=period)
    return period, offset


def config(hf: Fields) -> c.Config:
    hf.read |= {*UNUSED.split()}
    heads, layers, width = hf.integer("num_attention_heads"), hf.integer("num_hidden_layers", high=100_000), hf.integer("hidden_size")
    kv_heads = hf.maybe("num_key_value_heads", stated=True) or heads
    hf.relate(width % heads == 0, "hidden_size % num_attention_heads == 0", hidden_size=width, num_attention_heads=heads)
    hf.relate(heads % kv_heads == 0, "num_attention_heads % num_key_value_heads == 0", heads=heads, kv_heads=kv_heads)
    attn, scan = c.Attention(heads, kv_heads, width // heads), selective(hf)
    mlp: c.AnyFfn = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"))
    attends, sparse = every(hf, "attn", 8, 4), every(hf, "expert", 2, 1)
    moe = moe_fields.by_softmax(hf, "intermediate_size", normalised=False) if moe_fields.experts(hf) > 1 else mlp
    hf.read.add("num_experts_per_tok")
    mixers = (attn if i % attends[0] == attends[1] else scan for i in range(layers))
    return llama.decoder(hf, tuple(c.Layer(one, moe if i % sparse[0] == sparse[1] else mlp) for i, one in enumerate(mixers)))


LAYER = "model.layers.{i}."
RULES = (
    *falcon_h1.ENDS,
    Rule(f"{LAYER}input_layernorm.*", "layers.{i}.attn_norm.*"),
    Rule(f"{LAYER}input_layernorm.*", "layers.{i}.mamba_norm.*"),
    Rule(f"{LAYER}pre_ff_layernorm.*", "layers.{i}.ffn_norm.*"),
    *llama.ATTENTION,
    *mamba_fields.selective_rules(f"{LAYER}mamba"),
    Rule(f"{LAYER}feed_forward.router.weight", "layers.{i}.ffn.router.weight"),
    *(Rule(f"{LAYER}feed_forward.experts.{{e}}.{n}_proj.weight", f"layers.{{i}}.ffn.{n}", STACKED) for n in ("gate", "up", "down")),
    *(Rule(f"{LAYER}feed_forward.{n}_proj.*", f"layers.{{i}}.ffn.{n}.*") for n in ("gate", "up", "down")),
)

FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, architecture="JambaForCausalLM")
