"""MiniMax-M2 (2025): grouped heads that turn half their width, OLMo 2's norms of queries and keys, and DeepSeek-V3's choice of experts."""

from dataclasses import replace

from pellucid import config as c
from pellucid.families import llama, mixtral, moe_fields, qwen3
from pellucid.families.acts import ACTS
from pellucid.families.family import Family
from pellucid.families.fields import Fields
from pellucid.families.names import Rule
from pellucid.families.rope import rope

# Of the model before it, whose layers had three kinds, and of the modules behind the last layer, which are another model.
UNUSED = {"layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta", "mlp_intermediate_size"}
UNUSED |= {"shared_moe_mode", "use_mtp", "num_mtp_modules", "mtp_transformer_layers", "num_nextn_predict_layers"}
KINDS_SAID = {"scoring_func": "sigmoid", "qk_norm_type": "per_layer", "use_qk_norm": True, "use_routing_bias": True}


def attention(hf: Fields) -> c.Attention:
    head = hf.integer("head_dim", 128)
    part = hf.integer("rotary_dim", head) / head
    attn = llama.attention(hf, qk_norm=True, head=head)
    return replace(attn, qk_joint=True, rope=rope(hf, head, theta=5e6, part=part))


def config(hf: Fields) -> c.Config:
    layers = hf.integer("num_hidden_layers", high=100_000)
    hf.maybe("num_key_value_heads", stated=True)
    hf.read |= UNUSED
    for name, value in KINDS_SAID.items():
        hf.fixed(name, value)
    hf.fixed("attn_type_list", [1] * layers)
    hf.fixed("shared_intermediate_size", 0)
    count, chosen = moe_fields.experts(hf), hf.integer("num_experts_per_tok", 8)
    hf.relate(chosen <= count, "num_experts_per_tok <= experts", num_experts_per_tok=chosen, experts=count)
    moe = c.Moe(count, chosen, hf.integer("intermediate_size"), act=hf.choice("hidden_act", ACTS, "silu"), least=0.0)
    return llama.decoder(hf, (c.Layer(attention(hf), moe),) * layers)


RULES = (*mixtral.RULES, Rule(f"{mixtral.FFN}.e_score_correction_bias", "layers.{i}.ffn.correction"), *qwen3.QK_NORMS)

FAMILY = Family(config=config, rules=RULES, ignored=llama.IGNORED, respell=mixtral.respell, architecture="MiniMaxM2ForCausalLM")
