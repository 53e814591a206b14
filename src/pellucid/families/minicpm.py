"""MiniCPM 1B and 2B (arXiv 2404.06395, published as code of their own): Llama with factors of the embedding, the parts and the head."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def decoder(hf: Fields, attn: c.AnyAttention, mlp: c.Mlp) -> c.Config:
    """Return the Config of blocks of these two parts, with MiniCPM's factors; a null one changes nothing."""
    layers = hf.integer("num_hidden_layers", high=100_000)
    depth, base = hf.optional("scale_depth", 1.4), hf.maybe("dim_model_base", stated=True)
    gain = 1.0 if depth is None else depth / layers**0.5
    cfg = llama.decoder(hf, (c.Layer(attn, mlp, gain=gain),) * layers, eps=1e-5)
    cfg = replace(cfg, tied=hf.flag("tie_word_embeddings", True))
    return replace(cfg, embed_scale=hf.number("scale_emb", 12.0), logit_scale=1.0 if base is None else base / cfg.width)


def config(hf: Fields) -> c.Config:
    for name in ("scale_emb", "scale_depth", "dim_model_base"):
        hf.get(name)  # the defaults of the published code changed with its versions
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"))
    return decoder(hf, llama.attention(hf), mlp)


FAMILY = Family(config=config, rules=llama.RULES, ignored=llama.IGNORED)
