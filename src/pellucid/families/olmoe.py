"""OLMoE (arXiv 2409.02060): Llama's block with OLMo 2's norms of queries and keys, and experts chosen by a softmax."""

from pellucid import config as c
from pellucid.families import llama, moe_fields, olmo2, qwen2_moe, qwen3
from pellucid.families.family import Family
from pellucid.families.fields import Fields


def config(hf: Fields) -> c.Config:
    attn = olmo2.attention(hf)
    hf.relate(attn.heads * attn.width == hf.integer("hidden_size"), "head_dim == hidden_size / num_attention_heads", head_dim=attn.width)
    hf.fixed("clip_qkv", None)
    moe = moe_fields.by_softmax(hf, "intermediate_size", normalised=hf.flag("norm_topk_prob", False))
    return llama.decoder(hf, (c.Layer(attn, moe),) * hf.integer("num_hidden_layers", high=100_000), eps=1e-5)


RULES = (*llama.ENDS, *llama.NORMS, *llama.ATTENTION, *qwen3.QK_NORMS, *qwen2_moe.EXPERTS)

FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, architecture="OlmoeForCausalLM")
