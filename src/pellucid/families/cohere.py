"""Command R (Cohere, 2024): attention and feed-forward part side by side behind one LayerNorm without a bias, rotary pairs side by side,
a tied table, and logits times a small factor.
"""

from pellucid import config as c
from pellucid.families import llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def decoder(hf: Fields, attentions: tuple[c.Attention, ...]) -> c.Config:
    """Return the Config of one block for each of these attentions."""
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"))
    return c.Config(
        vocab=hf.integer("vocab_size"),
        width=hf.integer("hidden_size"),
        layers=tuple(c.Layer(attn, mlp, order="parallel") for attn in attentions),
        tied=hf.flag("tie_word_embeddings", True),
        eps=hf.number("layer_norm_eps", 1e-5),
        norm="layer, no bias",
        logit_factor=hf.number("logit_scale", 0.0625),
        context=max((n for n in map(hf.maybe, ("max_position_embeddings", "model_max_length")) if n), default=None),
    )


def config(hf: Fields) -> c.Config:
    return decoder(hf, (llama.attention(hf, theta=500_000.0, interleaved=True),) * hf.integer("num_hidden_layers", high=100_000))


RULES = (*llama.ENDS, llama.NORMS[0], *llama.ATTENTION, *llama.DENSE)

FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, architecture="CohereForCausalLM")
