"""granitemoe, tiny."""

from kinds import Kind
from kinds.granite import KIND as GRANITE

KIND = Kind(
    tiny={k: v for k, v in GRANITE.tiny.items() if k != "head_dim"}
    | {"intermediate_size": 24, "num_local_experts": 5, "num_experts_per_tok": 2},
    quirks={
        "plain": {},
        "all experts, tied": {"num_experts_per_tok": 5, "tie_word_embeddings": True, "hidden_act": "gelu"},
        "one expert, biases": {"num_experts_per_tok": 1, "attention_bias": True, "residual_multiplier": 1.0},
        "one group, a wide epsilon": {"num_key_value_heads": 1, "rms_norm_eps": 0.02},
    },
    changes=(("plain", {"num_experts_per_tok": 3}), ("plain", {"residual_multiplier": 0.23})),
    refused=(("plain", {"num_experts_per_tok": 6}, "num_experts_per_tok <= experts"),),
    reads=("residual_multiplier",),
)
