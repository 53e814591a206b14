"""EXAONE 4 (arXiv 2507.11407): Qwen3's attention with a norm of what each part made; full layers among windowed ones do not turn."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import gemma2, llama, olmo2
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def kinds(hf: Fields, window: int | None) -> list[str]:
    """Return each layer's kind: listed, as it must be without a window, or each `sliding_window_pattern`-th full."""
    if "layer_types" in hf or window is None:
        hf.read |= {"sliding_window_pattern"}  # says the same again, as "LLLG" in the publisher's files
        return hf.texts("layer_types", hf.integer("num_hidden_layers", high=100_000), gemma2.KINDS)
    return gemma2.kinds(hf, hf.integer("sliding_window_pattern", 4))


def attentions(hf: Fields) -> list[c.Attention]:
    """Return each layer's attention."""
    hf.maybe("num_key_value_heads", stated=True)
    attn = llama.attention(hf, qk_norm=True)
    window = hf.maybe("sliding_window", stated=True)
    own = kinds(hf, window)
    if window is None and gemma2.SLIDING in own:
        raise hf.fault("sliding_window", window, "int > 0")
    by_kind = {gemma2.FULL: attn if window is None else replace(attn, rope=None), gemma2.SLIDING: replace(attn, window=window)}
    return [by_kind[kind] for kind in own]


def config(hf: Fields) -> c.Config:
    return olmo2.decoder(hf, attentions(hf))


FAMILY = Family(config=config, rules=olmo2.RULES, ignored=llama.IGNORED, architecture="Exaone4ForCausalLM")
