"""IQuest-Coder (2025): Llama with heads of 128."""

from pellucid import config as c
from pellucid.families import llama
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def config(hf: Fields) -> c.Config:
    hf.maybe("num_key_value_heads", stated=True)
    mlp = c.Mlp(hf.integer("intermediate_size"), hf.choice("hidden_act", ACTS, "silu"), bias=hf.flag("mlp_bias", False))
    layer = c.Layer(llama.attention(hf, head=128), mlp)
    return llama.decoder(hf, (layer,) * hf.integer("num_hidden_layers", high=100_000), eps=1e-5)


FAMILY = Family(config=config, rules=llama.RULES, ignored=llama.IGNORED, architecture="IQuestCoderForCausalLM")
