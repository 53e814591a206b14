"""The text model of Gemma 4 12B (2026), whose images and sounds enter without encoders: Gemma 4 without inputs of each layer."""

from pellucid import config as c
from pellucid.families import gemma4_text, llama
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def config(hf: Fields) -> c.Config:
    hf.values = {"sliding_window": 1024, **hf.values}
    return gemma4_text.config(hf, inputs=0)


FAMILY = Family(config=config, rules=gemma4_text.rules, ignored=llama.IGNORED, architecture="Gemma4UnifiedForCausalLM")
