"""GLM-4.5 and 4.6 (arXiv 2508.06471): grouped heads with rotary positions on half their width, and DeepSeek-V3's experts."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import deepseek_v3, llama, moe_fields, qwen3
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.rope import rope


def config(hf: Fields) -> c.Config:
    hf.maybe("num_key_value_heads", stated=True)
    hf.read |= {"num_nextn_predict_layers", "num_mtp_layers"}  # the module behind the last layer is another model
    attn = llama.attention(hf, qk_norm=hf.flag("use_qk_norm", False))
    attn = replace(attn, rope=rope(hf, attn.width, part=0.5), out_bias=False)
    return llama.decoder(hf, moe_fields.dense_first(hf, attn, deepseek_v3.moe(hf)), eps=1e-5)


FAMILY = Family(
    config=config,
    rules=(*qwen3.RULES, *deepseek_v3.EXPERTS),
    ignored=deepseek_v3.ignored,
    architecture="Glm4MoeForCausalLM",
)
