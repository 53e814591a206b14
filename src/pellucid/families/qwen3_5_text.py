"""Qwen3.5's text model (2026): Qwen3-Next's layers with dense feed-forward parts."""

from pellucid import config as c
from pellucid.families import llama, qwen3_next
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import SPLIT, Rule


def mixers(hf: Fields) -> list[c.AnyAttention]:
    """Return what mixes the rows of each layer. A text's three positions are the same, so how they share out the angles means nothing."""
    if (rope := hf.part("rope_parameters")) is not None:
        rope.read |= {"mrope_section", "mrope_interleaved"}
    return qwen3_next.mixers(hf)


def config(hf: Fields) -> c.Config:
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"))
    return qwen3_next.decoder(hf, tuple(c.Layer(mixer, mlp) for mixer in mixers(hf)))


APART = (
    Rule("model.layers.{i}.linear_attn.in_proj_qkv.*", tuple(f"layers.{{i}}.delta.{n}.*" for n in "qkv"), SPLIT),
    *(Rule(f"model.layers.{{i}}.linear_attn.in_proj_{n}.*", f"layers.{{i}}.delta.{n}.*") for n in "zba"),
)


def rules(cfg: c.Config) -> tuple[Rule, ...]:
    return (*qwen3_next.gated_attention(cfg), *APART, *qwen3_next.DELTA_RULES, *llama.RULES)


FAMILY = Family(config=config, rules=rules, ignored=qwen3_next.IGNORED, architecture="Qwen3_5ForCausalLM")
