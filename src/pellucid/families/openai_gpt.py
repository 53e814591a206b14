"""GPT (Radford et al. 2018): GPT-2's parts, but with the norms after the sums and none at the end, and a GELU always by tanh."""

from pellucid import config as c
from pellucid.families import gpt2
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule

ACTS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}


def config(hf: Fields) -> c.Config:
    width, heads, layers = hf.integer("n_embd"), hf.integer("n_head"), hf.integer("n_layer", high=100_000)
    hf.relate(width % heads == 0, "n_embd % n_head == 0", n_embd=width, n_head=heads)
    hf.read |= {"n_special", "predict_special_tokens"}  # of its first training
    attn = c.Attention(heads, heads, width // heads, bias=True, out_bias=True)
    mlp = c.Mlp(4 * width, hf.choice("afn", ACTS, "gelu"), gated=False, bias=True)
    positions = hf.integer("n_positions", 512)
    return c.Config(
        vocab=hf.integer("vocab_size"),
        width=width,
        layers=(c.Layer(attn, mlp, order="post"),) * layers,
        tied=hf.flag("tie_word_embeddings", True),
        eps=hf.number("layer_norm_epsilon", 1e-5),
        norm="layer",
        positions=positions,
        final_norm=False,
        context=positions,
    )


RULES = (
    Rule("transformer.tokens_embed.*", "embed.*"),
    Rule("transformer.positions_embed.*", "positions.*"),
    *gpt2.LAYERS,
    Rule("lm_head.*", "head.*"),
)
IGNORED = (r"transformer\.h\.\d+\.attn\.bias", r"transformer\.position_ids")  # masks and counts that old files carry

FAMILY = Family(config=config, rules=RULES, ignored=IGNORED, respell=gpt2.respell, architecture="OpenAIGPTLMHeadModel")
