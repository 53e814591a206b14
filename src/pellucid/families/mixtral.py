"""Mixtral 8x7B and 8x22B (arXiv 2401.04088): Mistral's attention, and two of eight experts, chosen by a softmax."""

import re

from pellucid import config as c
from pellucid.families import llama, mistral, moe_fields
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import STACKED, Rule


def config(hf: Fields) -> c.Config:
    layer = c.Layer(mistral.attention(hf, theta=1e6), moe_fields.by_softmax(hf, "intermediate_size"))
    return llama.decoder(hf, (layer,) * hf.integer("num_hidden_layers", high=100_000), eps=1e-5)


FFN = "model.layers.{i}.block_sparse_moe"
WAYS = {"gate": "w1", "up": "w3", "down": "w2"}
RULES = (
    *llama.ENDS,
    *llama.NORMS,
    *llama.ATTENTION,
    Rule(f"{FFN}.gate.weight", "layers.{i}.ffn.router.weight"),
    *(Rule(f"{FFN}.experts.{{e}}.{w}.weight", f"layers.{{i}}.ffn.{n}", STACKED) for n, w in WAYS.items()),
)


def respell(name: str) -> str:
    """Return a name with `block_sparse_moe` in place of transformers' `mlp`."""
    return re.sub(r"^(model\.layers\.\d+)\.mlp\b", r"\1.block_sparse_moe", name)


FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, respell=respell, architecture="MixtralForCausalLM")
