"""The text model of Gemma 4 12B (2026), whose images and sounds enter without encoders: Gemma 4 without inputs of each layer."""

from pellucid import config as c
from pellucid.families import gemma4_text, llama
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def config(hf: Fields) -> c.Config:
    hf.values = {"sliding_window": 1024, "hidden_size_per_layer_input": 0, **hf.values}
    for name in ("num_kv_shared_layers", "hidden_size_per_layer_input"):
        hf.fixed(name, 0)
    return gemma4_text.config(hf)


FAMILY = Family(config=config, rules=gemma4_text.rules, ignored=llama.IGNORED, architecture="Gemma4UnifiedForCausalLM")
