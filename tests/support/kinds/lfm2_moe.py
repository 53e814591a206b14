"""lfm2_moe, tiny."""

from kinds import LLAMA, Kind

KIND = Kind(
    tiny=LLAMA
    | {
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "layer_types": ["conv", "full_attention", "conv", "full_attention"],
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 16,
        "pad_token_id": 0,
    },
    quirks={
        "plain": {},
        "as chosen, scaled": {"use_expert_bias": False, "routed_scaling_factor": 2.5, "num_dense_layers": 0},
        "not normalised, biases": {"norm_topk_prob": False, "conv_bias": True, "conv_L_cache": 4, "num_attention_heads": 2},
        "one group, a wide epsilon": {"num_key_value_heads": 1, "norm_eps": 0.02},
    },
    dtypes=("plain",),
    changes=(("plain", {"norm_topk_prob": False}), ("plain", {"num_experts_per_tok": 2}), ("plain", {"routed_scaling_factor": 1.1})),
    refused=(
        ("plain", {"num_experts_per_tok": 7}, "num_experts_per_tok <= experts"),
        ("plain", {"layer_types": ["conv"] * 3}, "layer_types"),
    ),
)
