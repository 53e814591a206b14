"""FlexOlmo (arXiv 2507.07024): OLMo 2 with experts chosen by a softmax."""

from pellucid import config as c
from pellucid.families import llama, moe_fields, olmo2, qwen2_moe, qwen3
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def config(hf: Fields) -> c.Config:
    moe = moe_fields.by_softmax(hf, "intermediate_size", normalised=hf.flag("norm_topk_prob", False))
    layer = c.Layer(olmo2.attention(hf, theta=500_000.0), moe, order="after")
    return llama.decoder(hf, (layer,) * hf.integer("num_hidden_layers", high=100_000))


RULES = (*llama.ENDS, *olmo2.NORMS, *llama.ATTENTION, *qwen3.QK_NORMS, *qwen2_moe.EXPERTS)

FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, architecture="FlexOlmoForCausalLM")
