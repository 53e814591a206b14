"""hy_v3, tiny."""

from kinds import LLAMA, YARN, Kind

KIND = Kind(
    tiny=LLAMA | {"head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_shared_experts": 1},
    quirks={
        "plain": {},
        "two shared, all sparse": {"num_shared_experts": 2, "mlp_layer_types": ["sparse", "sparse"], "hidden_act": "gelu"},
        "biases, another scale": {"attention_bias": True, "router_scaling_factor": 1.5, "rms_norm_eps": 0.01},
        "yarn, tied": {"rope_parameters": YARN, "tie_word_embeddings": True, "num_key_value_heads": 1},
    },
    changes=(
        ("plain", {"num_experts_per_tok": 3}),
        ("plain", {"router_scaling_factor": 2.83}),
        ("plain", {"rms_norm_eps": 1.1e-5}),
    ),
    refused=(
        ("plain", {"num_experts_per_tok": 7}, "num_experts_per_tok <= experts"),
        ("plain", {"mlp_layer_types": ["dense"]}, "mlp_layer_types"),
        ("plain", {"moe_router_use_sigmoid": False}, "moe_router_use_sigmoid"),
    ),
)
