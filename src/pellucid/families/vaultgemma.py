"""VaultGemma 1B (arXiv 2510.15001): Gemma 2 without the norms behind its parts, trained with differential privacy."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import gemma2, llama
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule


def config(hf: Fields) -> c.Config:
    cfg = gemma2.config(hf)
    return replace(cfg, layers=tuple(replace(layer, order="pre") for layer in cfg.layers))


RULES = (
    *llama.ENDS,
    *(Rule(f"model.layers.{{i}}.{n}.*", f"layers.{{i}}.{gemma2.NORMS[n]}.*") for n in ("input_layernorm", "pre_feedforward_layernorm")),
    *llama.ATTENTION,
    *llama.DENSE,
)

FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, architecture="VaultGemmaForCausalLM")
