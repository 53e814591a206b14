"""Phi-3.5-MoE (arXiv 2404.14219): LayerNorms with biases, LongRoPE, and two of sixteen experts, weighed by SparseMixer."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import llama, mixtral, moe_fields
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.rope import kind, settings

CHOSEN = 2  # SparseMixer is made for two


def with_amount(hf: Fields, attn: c.Attention) -> c.Attention:
    """Return attention whose angles have the amount that the file states, which must be one for short and long texts."""
    scaling = settings(hf)
    if scaling is None or attn.rope is None:
        return attn
    for name in ("rope_type", "type"):
        scaling.fixed(name, "default", "longrope", "su")
    scaling.read |= {"short_mscale", "long_mscale"}
    if kind(scaling) == "default" or not isinstance(attn.rope.scaling, c.LongRope):
        return attn
    short, long = (scaling.number(f"{name}_mscale") for name in ("short", "long"))
    scaling.relate(short == long, "short_mscale == long_mscale", short=short, long=long)
    return replace(attn, rope=replace(attn.rope, scaling=replace(attn.rope.scaling, amount=short)))


def config(hf: Fields) -> c.Config:
    hf.maybe("num_key_value_heads", stated=True)
    hf.maybe("original_max_position_embeddings")
    attn = replace(with_amount(hf, llama.attention(hf, theta=1e6)), window=hf.maybe("sliding_window"))
    moe = moe_fields.by_softmax(hf, "intermediate_size", normalised=False, near=2 * hf.number("router_jitter_noise", 0.01, above=-1e-30))
    hf.relate(moe.chosen == CHOSEN, "num_experts_per_tok == 2", num_experts_per_tok=moe.chosen)
    hf.read |= {"input_jitter_noise"}
    cfg = llama.decoder(hf, (c.Layer(attn, moe),) * hf.integer("num_hidden_layers", high=100_000), eps=1e-5)
    return replace(cfg, norm="layer", head_bias=hf.flag("lm_head_bias", False))


def respell(name: str) -> str:
    """Return a name with Mixtral's spelling in place of transformers'."""
    return mixtral.respell(name).replace(".block_sparse_moe.router.", ".block_sparse_moe.gate.")


FAMILY = Family(config=config, rules=mixtral.RULES, ignored=llama.IGNORED, respell=respell, architecture="PhimoeForCausalLM")
