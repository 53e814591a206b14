"""OLMo 3 (arXiv 2512.13961): OLMo 2 with windows in three of four layers, whose rotary turn is never scaled."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import gemma2, llama, olmo2
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.rope import rope

THETA = 500_000.0


def config(hf: Fields) -> c.Config:
    attn = olmo2.attention(hf, layer=gemma2.FULL, theta=THETA)
    # transformers reads an old file's rope_theta for full layers alone
    near = rope(hf, attn.width, layer=gemma2.SLIDING, theta=THETA) if "rope_parameters" in hf else c.Rope(attn.width, THETA)
    by_kind = {gemma2.FULL: attn, gemma2.SLIDING: replace(attn, rope=near, window=hf.length("sliding_window", 4096))}
    return olmo2.decoder(hf, [by_kind[kind] for kind in gemma2.kinds(hf, 4)])


FAMILY = Family(config=config, rules=olmo2.RULES, ignored=llama.IGNORED, architecture="Olmo3ForCausalLM")
