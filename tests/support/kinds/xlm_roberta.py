"""xlm-roberta, tiny: roberta by another name."""

from dataclasses import replace

from kinds.roberta import KIND as ROBERTA

KIND = replace(
    ROBERTA,
    quirks={
        "plain": {},
        "gelu by tanh": {"hidden_act": "gelu_new"},
        "wide": {"intermediate_size": 64},
        "two heads, a wide epsilon": {"num_attention_heads": 2, "layer_norm_eps": 0.02},
    },
)
