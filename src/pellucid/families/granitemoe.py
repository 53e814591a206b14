"""Granite 3 with experts (IBM, 2024; its 1B and 3B): Granite's multipliers, and experts in three tensors, chosen by a softmax."""

import re

from pellucid import config as c
from pellucid.families import granite, llama, moe_fields
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import FUSED, Rule


def config(hf: Fields) -> c.Config:
    return granite.multiplied(hf, moe_fields.by_softmax(hf, "intermediate_size"))


FFN = "model.layers.{i}.block_sparse_moe"
RULES = (
    *llama.ENDS,
    *llama.NORMS,
    *llama.ATTENTION,
    Rule(f"{FFN}.router.layer.weight", "layers.{i}.ffn.router.weight"),
    Rule(f"{FFN}.input_linear.weight", ("layers.{i}.ffn.gate", "layers.{i}.ffn.up"), FUSED),
    Rule(f"{FFN}.output_linear.weight", "layers.{i}.ffn.down"),
)
PUBLISHED = {"router": "router.layer", "experts.gate_up_proj": "input_linear.weight", "experts.down_proj": "output_linear.weight"}


def respell(name: str) -> str:
    """Return a name as published files have it, in place of transformers' names in memory."""
    inside = re.fullmatch(r"(model\.layers\.\d+\.block_sparse_moe\.)(router(?=\.weight)|experts\.\w+_proj)(.*)", name)
    return name if inside is None else inside[1] + PUBLISHED[inside[2]] + inside[3]


FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, respell=respell, architecture="GraniteMoeForCausalLM")
