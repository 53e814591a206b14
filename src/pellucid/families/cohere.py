"""Command R (Cohere, 2024): attention and feed-forward part side by side behind one LayerNorm without a bias, rotary pairs side by side,
a tied table, and logits times a small factor. In Command R+ each head's query and key have a LayerNorm of their own.
"""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule, by_head


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
    own = hf.flag("use_qk_norm", False)
    attn = replace(llama.attention(hf, qk_norm=own, theta=500_000.0, interleaved=True), qk_own=own)
    return decoder(hf, (attn,) * hf.integer("num_hidden_layers", high=100_000))


RULES = (*llama.ENDS, llama.NORMS[0], *llama.ATTENTION, *llama.DENSE)


def rules(cfg: c.Config) -> tuple[Rule, ...]:
    """Return the table. The weights of the norms of queries and keys have a row for each head."""
    heads = {"q": cfg.heads, "k": cfg.layers[0].attn.kv_heads or cfg.heads}
    return (*RULES, *(Rule(f"model.layers.{{i}}.self_attn.{n}_norm.*", f"layers.{{i}}.attn.{n}_norm.*", by_head(heads[n])) for n in heads))


FAMILY = Family(config=config, rules=rules, ignored=llama.IGNORED, architecture="CohereForCausalLM")
