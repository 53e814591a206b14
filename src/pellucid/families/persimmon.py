"""Persimmon 8B (Adept, 2023): LayerNorms, of queries and keys too, of which half a head turns, and a network that squares what it keeps."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule, grouped


def config(hf: Fields) -> c.Config:
    hf.fixed("num_key_value_heads", hf.integer("num_attention_heads"))  # every head has its own, whatever a file says
    attn = replace(llama.attention(hf, qk_norm=hf.flag("qk_layernorm", True), part=0.5), bias=True, out_bias=True)
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "relu2"), gated=False, bias=True)
    hf.read |= {"hidden_dropout"}
    return c.Config(
        vocab=hf.integer("vocab_size"),
        width=hf.integer("hidden_size"),
        layers=(c.Layer(attn, mlp),) * hf.integer("num_hidden_layers", high=100_000),
        tied=hf.flag("tie_word_embeddings", False),
        eps=hf.number("layer_norm_eps", 1e-5),
        norm="layer",
        context=hf.maybe("max_position_embeddings"),
    )


LAYER = "model.layers.{i}"


def rules(cfg: c.Config) -> tuple[Rule, ...]:
    """Return the table. The queries, keys and values of a head lie behind one another."""
    return (
        *llama.ENDS[::2],
        *llama.NORMS,
        Rule(f"{LAYER}.self_attn.query_key_value.*", tuple(f"layers.{{i}}.attn.{n}.*" for n in "qkv"), grouped(cfg.heads)),
        Rule(f"{LAYER}.self_attn.dense.*", "layers.{i}.attn.o.*"),
        *(Rule(f"{LAYER}.self_attn.{n}_layernorm.*", f"layers.{{i}}.attn.{n}_norm.*") for n in "qk"),
        Rule(f"{LAYER}.mlp.dense_h_to_4h.*", "layers.{i}.ffn.up.*"),
        Rule(f"{LAYER}.mlp.dense_4h_to_h.*", "layers.{i}.ffn.down.*"),
        Rule("model.final_layernorm.*", "norm.*"),
    )


FAMILY = Family(config=config, rules=rules, ignored=llama.IGNORED, architecture="PersimmonForCausalLM")
