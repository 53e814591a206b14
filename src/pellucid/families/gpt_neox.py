"""GPT-NeoX and Pythia (arXiv 2204.06745, 2304.01373): attention and feed-forward part side by side behind a norm each, a quarter of each
head turns, queries, keys and values of a head side by side on disk.
"""

from pellucid import config as c
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule, grouped, prefixed
from pellucid.families.rope import rope


def config(hf: Fields) -> c.Config:
    width, heads, layers = hf.integer("hidden_size"), hf.integer("num_attention_heads"), hf.integer("num_hidden_layers", high=100_000)
    hf.relate(width % heads == 0, "hidden_size % num_attention_heads == 0", hidden_size=width, num_attention_heads=heads)
    turn = rope(hf, width // heads, part=0.25, base="rotary_emb_base", share="rotary_pct")
    hf.fixed("rope_theta", turn.theta)  # files of transformers 4.48 tell it twice
    bias = hf.flag("attention_bias", True)
    attn = c.Attention(heads, heads, width // heads, turn, bias=bias, out_bias=bias)
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "gelu"), gated=False, bias=True)
    order = "parallel, two norms" if hf.flag("use_parallel_residual", True) else "pre"
    return c.Config(
        vocab=hf.integer("vocab_size"),
        width=width,
        layers=(c.Layer(attn, mlp, order=order),) * layers,
        tied=hf.flag("tie_word_embeddings", False),
        eps=hf.number("layer_norm_eps", 1e-5),
        norm="layer",
        context=hf.maybe("max_position_embeddings"),
    )


LAYER = "gpt_neox.layers.{i}"


def rules(cfg: c.Config) -> tuple[Rule, ...]:
    return (
        Rule("gpt_neox.embed_in.*", "embed.*"),
        Rule(f"{LAYER}.input_layernorm.*", "layers.{i}.attn_norm.*"),
        Rule(
            f"{LAYER}.attention.query_key_value.*",
            tuple(f"layers.{{i}}.attn.{n}.*" for n in "qkv"),
            grouped(cfg.layers[0].attn.heads),
        ),
        Rule(f"{LAYER}.attention.dense.*", "layers.{i}.attn.o.*"),
        Rule(f"{LAYER}.post_attention_layernorm.*", "layers.{i}.ffn_norm.*"),
        Rule(f"{LAYER}.mlp.dense_h_to_4h.*", "layers.{i}.ffn.up.*"),
        Rule(f"{LAYER}.mlp.dense_4h_to_h.*", "layers.{i}.ffn.down.*"),
        Rule("gpt_neox.final_layer_norm.*", "norm.*"),
        Rule("embed_out.*", "head.*"),
    )


IGNORED = (r"gpt_neox\.layers\.\d+\.attention\.((masked_)?bias|rotary_emb\.inv_freq)",)  # masks and angles that old files carry


def respell(name: str) -> str:
    """Return a complete name, with `embed_out`, as published files have it, in place of transformers' `lm_head`."""
    return name.replace("lm_head.", "embed_out.") if name.startswith("lm_head.") else prefixed("gpt_neox.", "embed_out.")(name)


FAMILY = Family(config=config, rules=rules, ignored=IGNORED, respell=respell, architecture="GPTNeoXForCausalLM")
