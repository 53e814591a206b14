"""SantaCoder and StarCoder (arXiv 2301.03988, 2305.06161): GPT-2 whose heads share one key and one value."""

from pellucid import config as c
from pellucid.families import gpt2
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule, grouped

# of precision and of the server that ran the published files
PRECISION = {"attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "num_key_value_heads"}
SERVER = {"inference_runner", "max_batch_size", "max_sequence_length", "pad_key_length", "pre_allocate_kv_cache", "validate_runner_input"}


def config(hf: Fields) -> c.Config:
    width, heads = hf.integer("n_embd"), hf.integer("n_head")
    hf.relate(width % heads == 0, "n_embd % n_head == 0", n_embd=width, n_head=heads)
    shared, head, positions = hf.flag("multi_query", True), width // heads, hf.integer("n_positions", 1024)
    hf.read |= PRECISION | SERVER
    hf.fixed("num_key_value_heads", 1 if shared else heads)
    scale = head**-0.5 if hf.flag("scale_attn_weights", True) else 1.0
    attn = c.Attention(heads, 1 if shared else heads, head, bias=True, out_bias=True, scale=scale)
    act = hf.choice("activation_function", ACTS, "gelu_pytorch_tanh")
    mlp = c.Mlp(hf.maybe("n_inner") or 4 * width, act, gated=False, bias=True)
    return c.Config(
        vocab=hf.integer("vocab_size"),
        width=width,
        layers=(c.Layer(attn, mlp),) * hf.integer("n_layer", high=100_000),
        tied=hf.flag("tie_word_embeddings", True),
        eps=hf.number("layer_norm_epsilon", 1e-5),
        norm="layer",
        positions=positions,
        context=positions,
    )


def rules(cfg: c.Config) -> tuple[Rule, ...]:
    """Return the table. Queries, keys and values lie behind one another, by heads where each has its own."""
    groups, layer = cfg.layers[0].attn.kv_heads, "transformer.h.{i}"
    assert groups is not None
    return (
        *gpt2.ENDS,
        Rule(f"{layer}.ln_1.*", "layers.{i}.attn_norm.*"),
        Rule(f"{layer}.attn.c_attn.*", tuple(f"layers.{{i}}.attn.{n}.*" for n in "qkv"), grouped(groups)),
        Rule(f"{layer}.attn.c_proj.*", "layers.{i}.attn.o.*"),
        Rule(f"{layer}.ln_2.*", "layers.{i}.ffn_norm.*"),
        Rule(f"{layer}.mlp.c_fc.*", "layers.{i}.ffn.up.*"),
        Rule(f"{layer}.mlp.c_proj.*", "layers.{i}.ffn.down.*"),
    )


FAMILY = Family(config=config, rules=rules, ignored=gpt2.IGNORED, respell=gpt2.respell, architecture="GPTBigCodeForCausalLM")
