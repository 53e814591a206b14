"""Falcon (arXiv 2311.16867): attention and feed-forward part side by side, keys and values shared by many heads. Three generations:

rw        one part after the other, biases, a bias by distance instead of rotary positions
7b        both parts behind one norm, one key and one value for all heads
40b, 11b  one key and one value for each group of heads; a norm for each part, or one for both
"""

from pellucid import config as c
from pellucid.families import bloom, gpt2
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule
from pellucid.families.rope import rope


def order(hf: Fields, new: bool) -> str:
    """Return where the norms stand."""
    parallel, norms = hf.flag("parallel_attn", True), hf.maybe("num_ln_in_parallel_attn")
    hf.relate(parallel or not new, "parallel_attn or not new_decoder_architecture", parallel_attn=parallel, new_decoder_architecture=new)
    hf.relate(norms is None or norms <= 1 + new, "num_ln_in_parallel_attn <= 1 + new_decoder_architecture", num_ln_in_parallel_attn=norms)
    if not parallel:
        return "pre"
    return "parallel, two norms" if new and norms != 1 else "parallel"


def attention(hf: Fields, width: int, new: bool) -> c.Attention:
    heads, bias, shared = hf.integer("num_attention_heads"), hf.flag("bias", False), hf.flag("multi_query", True)
    hf.relate(width % heads == 0, "hidden_size % num_attention_heads == 0", hidden_size=width, num_attention_heads=heads)
    stated = hf.integer("num_kv_heads", heads)
    kv_heads = stated if new else 1 if shared else heads
    hf.relate(new or shared or stated == heads, "num_kv_heads == num_attention_heads", num_kv_heads=stated, num_attention_heads=heads)
    hf.relate(heads % kv_heads == 0, "num_attention_heads % num_kv_heads == 0", num_attention_heads=heads, num_kv_heads=kv_heads)
    head = width // heads
    use_alibi, turn = hf.flag("alibi", False), rope(hf, head)
    alibi = c.Alibi(scale=head**-0.5, rounded=True) if use_alibi else None
    return c.Attention(heads, kv_heads, head, None if use_alibi else turn, bias=bias, out_bias=bias, alibi=alibi)


def config(hf: Fields) -> c.Config:
    hf.fixed("apply_residual_connection_post_layernorm", False)
    width, layers = hf.integer("hidden_size"), hf.integer("num_hidden_layers", high=100_000)
    new = hf.flag("new_decoder_architecture", False)
    attn = attention(hf, width, new)
    mlp = c.Mlp(hf.integer("ffn_hidden_size", 4 * width), hf.choice("activation", ACTS, "gelu"), gated=False, bias=attn.bias)
    return c.Config(
        vocab=hf.integer("vocab_size"),
        width=width,
        layers=(c.Layer(attn, mlp, order=order(hf, new)),) * layers,
        tied=hf.flag("tie_word_embeddings", True),
        eps=hf.number("layer_norm_epsilon", 1e-5),
        norm="layer",
        context=hf.integer("max_position_embeddings", 2048),
    )


NORMS = {
    "pre": {"attn": "input_layernorm", "ffn": "post_attention_layernorm"},
    "parallel": {"attn": "input_layernorm"},
    "parallel, two norms": {"attn": "ln_attn", "ffn": "ln_mlp"},
}


def rules(cfg: c.Config) -> tuple[Rule, ...]:
    attn = cfg.layers[0].attn
    assert attn.kv_heads is not None
    norms = NORMS.get(cfg.layers[0].order, {})  # a variant may have an order that no Falcon has
    return (
        *bloom.megatron(attn.kv_heads),
        *(Rule(f"transformer.h.{{i}}.{theirs}.*", f"layers.{{i}}.{n}_norm.*") for n, theirs in norms.items()),
    )


IGNORED = (r"transformer\.h\.\d+\.self_attention\.rotary_emb\.inv_freq",)

FAMILY = Family(config=config, rules=rules, ignored=IGNORED, respell=gpt2.respell, architecture="FalconForCausalLM")
