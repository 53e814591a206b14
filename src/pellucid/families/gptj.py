"""GPT-J (Wang and Komatsuzaki 2021): attention without biases and a GELU network in parallel behind one norm; interleaved rotary pairs."""

from pellucid import config as c
from pellucid.families import gpt2
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule


def config(hf: Fields) -> c.Config:
    width, heads = hf.either("n_embd", "hidden_size"), hf.either("n_head", "num_attention_heads")
    hf.relate(width % heads == 0, "n_embd % n_head == 0", n_embd=width, n_head=heads)
    head = width // heads
    turns = hf.integer("rotary_dim", 64)
    hf.relate(turns <= head and turns % 2 == 0, "rotary_dim <= n_embd / n_head, rotary_dim % 2 == 0", rotary_dim=turns, head=head)
    hf.fixed("rotary", True)
    attn = c.Attention(heads, heads, head, c.Rope(turns, interleaved=True))
    mlp = c.Mlp(hf.maybe("n_inner") or 4 * width, hf.choice("activation_function", ACTS, "gelu_new"), gated=False, bias=True)
    hf.fixed("scale_attn_weights", True)
    return c.Config(
        vocab=hf.integer("vocab_size"),
        width=width,
        layers=(c.Layer(attn, mlp, order="parallel"),) * hf.either("n_layer", "num_hidden_layers", high=100_000),
        tied=hf.flag("tie_word_embeddings", False),
        eps=hf.number("layer_norm_epsilon", 1e-5),
        norm="layer",
        head_bias=True,
        context=hf.integer("n_positions", 2048),
    )


LAYER = "transformer.h.{i}"
RULES = (
    Rule("transformer.wte.*", "embed.*"),
    Rule(f"{LAYER}.ln_1.*", "layers.{i}.attn_norm.*"),
    *(Rule(f"{LAYER}.attn.{n}_proj.*", f"layers.{{i}}.attn.{n}.*") for n in "qkv"),
    Rule(f"{LAYER}.attn.out_proj.*", "layers.{i}.attn.o.*"),
    Rule(f"{LAYER}.mlp.fc_in.*", "layers.{i}.ffn.up.*"),
    Rule(f"{LAYER}.mlp.fc_out.*", "layers.{i}.ffn.down.*"),
    Rule("transformer.ln_f.*", "norm.*"),
    Rule("lm_head.*", "head.*"),
)
IGNORED = (r"transformer\.h\.\d+\.attn\.(masked_)?bias",)  # masks that old files carry

FAMILY = Family(config=config, rules=RULES, ignored=IGNORED, respell=gpt2.respell, architecture="GPTJForCausalLM")
