"""Llama 1 to 3.3 (arXiv 2302.13971, 2307.09288, 2407.21783): rotary positions, RMS norms, a gated SiLU network, grouped heads."""

from dataclasses import replace
from typing import Any

from pellucid import config as c
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule
from pellucid.families.rope import rope


def attention(hf: Fields, qk_norm: bool = False, bias: bool = False, head: int | None = None, **turn: Any) -> c.Attention:
    """Return the attention that Llama's fields describe; without `head_dim` a head is hidden_size / num_attention_heads wide.

    bias, head: the family's values where the file has no field.  turn: settings of `rope`.
    """
    width, heads = hf.integer("hidden_size"), hf.integer("num_attention_heads")
    kv_heads = hf.integer("num_key_value_heads", heads)
    own = hf.maybe("head_dim") or (None if "head_dim" in hf.values else head)  # a null is the width's share, as in transformers
    hf.relate(own is not None or width % heads == 0, "hidden_size % num_attention_heads == 0", hidden_size=width, num_attention_heads=heads)
    hf.relate(heads % kv_heads == 0, "num_attention_heads % num_key_value_heads == 0", heads=heads, kv_heads=kv_heads)
    bias, head = hf.flag("attention_bias", bias), own or width // heads
    return c.Attention(heads, kv_heads, head, rope(hf, head, **turn), qk_norm, bias=bias, out_bias=bias)


def decoder(hf: Fields, layers: tuple[c.Layer, ...], eps: float = 1e-6) -> c.Config:
    """Return the Config around `layers`, from the fields that all of Llama's descendants share."""
    return c.Config(
        vocab=hf.integer("vocab_size"),
        width=hf.integer("hidden_size"),
        layers=layers,
        tied=hf.flag("tie_word_embeddings", False),
        eps=hf.number("rms_norm_eps", eps),
        context=hf.maybe("max_position_embeddings"),
        prefix=hf.flag("prefix_lm", False),
    )


def config(hf: Fields, causal: bool = True, eps: float = 1e-6) -> c.Config:
    """Return the Config of Llama's fields. causal: whether a token sees only those before it.  eps: that of a file that names none."""
    attn = replace(attention(hf), causal=causal)
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"), bias=hf.flag("mlp_bias", False))
    return decoder(hf, (c.Layer(attn, mlp),) * hf.integer("num_hidden_layers", high=100_000), eps)


ENDS = (
    Rule("model.embed_tokens.*", "embed.*"),
    Rule("model.norm.*", "norm.*"),
    Rule("lm_head.*", "head.*"),
)
NORMS = (
    Rule("model.layers.{i}.input_layernorm.*", "layers.{i}.attn_norm.*"),
    Rule("model.layers.{i}.post_attention_layernorm.*", "layers.{i}.ffn_norm.*"),
)
ATTENTION = tuple(Rule(f"model.layers.{{i}}.self_attn.{n}_proj.*", f"layers.{{i}}.attn.{n}.*") for n in "qkvo")
DENSE = tuple(Rule(f"model.layers.{{i}}.mlp.{n}_proj.*", f"layers.{{i}}.ffn.{n}.*") for n in ("gate", "up", "down"))
RULES = (*ENDS, *NORMS, *ATTENTION, *DENSE)
IGNORED = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)

FAMILY = Family(config=config, rules=RULES, ignored=IGNORED, architecture="LlamaForCausalLM")
