"""Gemma 3's text model (arXiv 2503.19786): Gemma 2 with normed queries and keys, and a slower rotary turn in every sixth, full layer."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import gemma, gemma2, llama, qwen3
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.rope import rope


def config(hf: Fields) -> c.Config:
    attn = replace(gemma2.attention(hf, layer=gemma2.FULL, theta=1_000_000.0), qk_norm=True)
    near = rope(hf, attn.width, layer=gemma2.SLIDING, base="rope_local_base_freq")
    every = hf.integer("sliding_window_pattern", 6)
    by_kind = {gemma2.FULL: attn, gemma2.SLIDING: replace(attn, rope=near, window=hf.length("sliding_window", 4096))}
    layers = tuple(c.Layer(by_kind[kind], gemma2.mlp(hf), order="sandwich") for kind in gemma2.kinds(hf, every))
    return replace(gemma.decoder(hf, layers), logit_cap=hf.optional("final_logit_softcapping"))


RULES = (*gemma2.RULES, *qwen3.QK_NORMS)

FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, architecture="Gemma3ForCausalLM")
