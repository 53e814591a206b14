"""GPT-2 (Radford et al. 2019): learned positions, norms before the parts, plain heads, a GELU network, a tied head."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import SPLIT_TURNED, TURNED, Rule, prefixed


def config(hf: Fields) -> c.Config:
    width, heads, layers = hf.integer("n_embd"), hf.integer("n_head"), hf.integer("n_layer", high=100_000)
    hf.relate(width % heads == 0, "n_embd % n_head == 0", n_embd=width, n_head=heads)
    hf.fixed("n_special", 0)
    hf.read |= {"predict_special_tokens"}  # of the first training; gpt2-medium has both
    scale = (width // heads) ** -0.5 if hf.flag("scale_attn_weights", True) else 1.0
    attn = c.Attention(heads, heads, width // heads, bias=True, out_bias=True, scale=scale)
    mlp = c.Mlp(hf.maybe("n_inner") or 4 * width, hf.choice("activation_function", ACTS, "gelu_new"), gated=False, bias=True)
    falling = hf.flag("scale_attn_by_inverse_layer_idx", False)
    positions = hf.integer("n_positions", 1024)
    return c.Config(
        vocab=hf.integer("vocab_size"),
        width=width,
        layers=tuple(c.Layer(replace(attn, scale=scale / (i + 1) if falling else scale), mlp) for i in range(layers)),
        tied=hf.flag("tie_word_embeddings", True),
        eps=hf.number("layer_norm_epsilon", 1e-5),
        norm="layer",
        positions=positions,
        context=positions,
    )


LAYERS = (
    Rule("transformer.h.{i}.ln_1.*", "layers.{i}.attn_norm.*"),
    Rule("transformer.h.{i}.attn.c_attn.*", ("layers.{i}.attn.q.*", "layers.{i}.attn.k.*", "layers.{i}.attn.v.*"), SPLIT_TURNED),
    Rule("transformer.h.{i}.attn.c_proj.*", "layers.{i}.attn.o.*", TURNED),
    Rule("transformer.h.{i}.ln_2.*", "layers.{i}.ffn_norm.*"),
    Rule("transformer.h.{i}.mlp.c_fc.*", "layers.{i}.ffn.up.*", TURNED),
    Rule("transformer.h.{i}.mlp.c_proj.*", "layers.{i}.ffn.down.*", TURNED),
)
ENDS = (
    Rule("transformer.wte.*", "embed.*"),
    Rule("transformer.wpe.*", "positions.*"),
    Rule("transformer.ln_f.*", "norm.*"),
    Rule("lm_head.*", "head.*"),
)
RULES = (*ENDS, *LAYERS)
IGNORED = (r"transformer\.h\.\d+\.attn\.(masked_)?bias",)  # masks that old files carry
respell = prefixed("transformer.", "lm_head.")  # which OpenAI's own files leave out


FAMILY = Family(config=config, rules=RULES, ignored=IGNORED, respell=respell, architecture="GPT2LMHeadModel")
