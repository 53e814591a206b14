"""Apertus (arXiv 2509.14233): Llama with norms of queries and keys, and a feed-forward part without a gate, whose activation learns."""

from pellucid import config as c
from pellucid.families import llama, qwen3
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule
from pellucid.families.rope import settings


def config(hf: Fields) -> c.Config:
    hf.fixed("hidden_act", "xielu")
    hf.fixed("mlp_bias", False)
    hf.fixed("post_norm", False)
    hf.fixed("qk_norm", True)
    if settings(hf) is None:
        hf.get("rope_parameters")  # required: what transformers takes where it is missing is Llama 3's scaling
    mlp = c.Mlp(hf.integer("intermediate_size"), "xielu", gated=False)
    layer = c.Layer(llama.attention(hf, qk_norm=True, theta=12_000_000.0), mlp)
    return llama.decoder(hf, (layer,) * hf.integer("num_hidden_layers", high=100_000), eps=1e-5)


LAYER = "model.layers.{i}"
NORMS = {"attention_layernorm": "attn_norm", "feedforward_layernorm": "ffn_norm"}
RULES = (
    *llama.ENDS,
    *(Rule(f"{LAYER}.{theirs}.*", f"layers.{{i}}.{ours}.*") for theirs, ours in NORMS.items()),
    *llama.ATTENTION,
    *qwen3.QK_NORMS,
    *llama.DENSE[1:],
    *(Rule(f"{LAYER}.mlp.act_fn.{n}", f"layers.{{i}}.ffn.{n}") for n in ("alpha_p", "alpha_n", "beta", "eps")),
)


def respell(name: str) -> str:
    """Return a name with the activation's β, which is no bias of a norm in TensorFlow's spelling."""
    return name.replace(".act_fn.bias", ".act_fn.beta")


FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, respell=respell, architecture="ApertusForCausalLM")
