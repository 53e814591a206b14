"""Granite SWA with experts (IBM, 2026): sinks, windows and turns as there, and experts beside an optional network for every token."""

from pellucid import config as c
from pellucid.families import granite, granite_swa, granitemoe, granitemoeshared, llama, moe_fields
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import FUSED, Rule


def config(hf: Fields) -> c.Config:
    moe = moe_fields.by_softmax(hf, "intermediate_size", shared=hf.integer("shared_intermediate_size", 0, low=0))
    return granite.multiplied(hf, moe, granite_swa.attentions(hf))


# transformers writes this type under its own names, not under those of the older ones with experts
FFN = granitemoe.FFN
RULES = (
    *llama.ENDS,
    *llama.NORMS,
    *llama.ATTENTION,
    granite_swa.SINKS,
    Rule(f"{FFN}.router.weight", "layers.{i}.ffn.router.weight"),
    Rule(f"{FFN}.experts.gate_up_proj", ("layers.{i}.ffn.gate", "layers.{i}.ffn.up"), FUSED),
    Rule(f"{FFN}.experts.down_proj", "layers.{i}.ffn.down"),
    *granitemoeshared.shared("layers.{i}.ffn.shared"),
)

FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, architecture="GraniteMoeSWAForCausalLM")
