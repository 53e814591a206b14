"""GPT-Neo and TinyStories (Black et al. 2021; arXiv 2305.07759): GPT-2 with plain matrices, scores that nothing divides, and windows in
every other layer.
"""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import gpt2
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule

FULL, LOCAL = KINDS = ("global", "local")


def kinds(hf: Fields, layers: int) -> list[str]:
    """Return each layer's kind. `attention_types` is a list of [kinds, how many times]; `attention_layers` says the same at length."""
    groups = hf.get("attention_types", [[[*KINDS], 12]])
    match groups:
        case [*pairs] if all(isinstance(p, list) and list(map(type, p)) == [list, int] and 0 < p[1] <= layers for p in pairs):
            named = [kind for group, times in pairs for kind in group * times]
        case _:
            named = []
    if len(named) != layers or any(kind not in KINDS for kind in named):
        raise hf.fault("attention_types", groups, f"[[[{' | '.join(KINDS)}, ...], n], ...], Σn = {layers}")
    hf.fixed("attention_layers", named)
    return named


def config(hf: Fields) -> c.Config:
    width, heads = hf.integer("hidden_size"), hf.either("num_heads", "num_attention_heads")
    layers, positions = hf.either("num_layers", "num_hidden_layers", high=100_000), hf.integer("max_position_embeddings", 2048)
    hf.relate(width % heads == 0, "hidden_size % num_heads == 0", hidden_size=width, num_heads=heads)
    hf.read |= {"embed_dropout", "resid_dropout"}
    attn = c.Attention(heads, heads, width // heads, out_bias=True, scale=1.0)
    by_kind = {FULL: attn, LOCAL: replace(attn, window=hf.integer("window_size", 256))}
    mlp = c.Mlp(hf.maybe("intermediate_size") or 4 * width, hf.choice("activation_function", ACTS, "gelu_new"), gated=False, bias=True)
    return c.Config(
        vocab=hf.integer("vocab_size"),
        width=width,
        layers=tuple(c.Layer(by_kind[kind], mlp) for kind in kinds(hf, layers)),
        tied=hf.flag("tie_word_embeddings", True),
        eps=hf.number("layer_norm_epsilon", 1e-5),
        norm="layer",
        positions=positions,
        context=positions,
    )


LAYER = "transformer.h.{i}"
RULES = (
    *gpt2.ENDS,
    Rule(f"{LAYER}.ln_1.*", "layers.{i}.attn_norm.*"),
    *(Rule(f"{LAYER}.attn.attention.{n}_proj.*", f"layers.{{i}}.attn.{n}.*") for n in "qkv"),
    Rule(f"{LAYER}.attn.attention.out_proj.*", "layers.{i}.attn.o.*"),
    Rule(f"{LAYER}.ln_2.*", "layers.{i}.ffn_norm.*"),
    Rule(f"{LAYER}.mlp.c_fc.*", "layers.{i}.ffn.up.*"),
    Rule(f"{LAYER}.mlp.c_proj.*", "layers.{i}.ffn.down.*"),
)
IGNORED = (r"transformer\.h\.\d+\.attn\.attention\.(masked_)?bias",)  # masks that old files carry

FAMILY = Family(config=config, rules=RULES, ignored=IGNORED, respell=gpt2.respell, architecture="GPTNeoForCausalLM")
