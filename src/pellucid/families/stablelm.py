"""StableLM 3B and StableLM 2 (arXiv 2402.17834): Llama with LayerNorms, of which a quarter of each head turns.

In StableLM 2 12B each head's query and key have a LayerNorm of their own.
"""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule, a_tensor_a_head


def config(hf: Fields) -> c.Config:
    hf.integer("num_key_value_heads")  # required: transformers takes 32 where it is missing
    own = hf.flag("qk_layernorm", False)
    attn = replace(llama.attention(hf, qk_norm=own, part=0.25), bias=hf.flag("use_qkv_bias", False), qk_own=own)
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"))
    order = "parallel" if hf.flag("use_parallel_residual", False) else "pre"
    layers = (c.Layer(attn, mlp, order=order),) * hf.integer("num_hidden_layers", high=100_000)
    hf.read |= {"hidden_dropout"}
    return replace(llama.decoder(hf, layers), norm="layer", eps=hf.number("layer_norm_eps", 1e-5))


def rules(cfg: c.Config) -> tuple[Rule, ...]:
    """Return the table. The norms of queries and keys have a tensor for each head."""
    norms = {n: f"model.layers.{{i}}.self_attn.{n}_layernorm.norms.{{e}}.weight" for n in "qk"}
    heads = {"q": cfg.heads, "k": cfg.layers[0].attn.kv_heads or cfg.heads}
    return (*llama.RULES, *(Rule(disk, f"layers.{{i}}.attn.{n}_norm.weight", a_tensor_a_head(heads[n])) for n, disk in norms.items()))


FAMILY = Family(config=config, rules=rules, ignored=llama.IGNORED, architecture="StableLmForCausalLM")
