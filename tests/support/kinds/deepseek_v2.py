"""deepseek_v2, tiny."""

from kinds import DEEP_YARN, DEEPSEEK, Kind

KIND = Kind(
    tiny=DEEPSEEK | {"n_shared_experts": 2, "num_experts_per_tok": 3, "topk_method": "group_limited_greedy", "routed_scaling_factor": 3.0},
    quirks={
        "plain": {},
        "lite": {"q_lora_rank": None, "topk_method": "greedy", "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0},
        "yarn": {"rope_parameters": DEEP_YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}},
        "yarn, two mscales": {"rope_parameters": DEEP_YARN | {"mscale": 0.7}},
        "free, groups not named": {"topk_method": "greedy", "n_group": None, "topk_group": None, "tie_word_embeddings": True},
        "biases": {"attention_bias": True, "rms_norm_eps": 0.01, "n_shared_experts": 1},
        "no shared expert": {"n_shared_experts": 0, "first_k_dense_replace": 0},
    },
    dtypes=("plain", "lite", "yarn"),
    changes=(
        ("plain", {"routed_scaling_factor": 3.001}),
        ("plain", {"topk_method": "greedy"}),
        ("plain", {"n_group": 2}),
        ("plain", {"topk_group": 3}),
        ("plain", {"num_experts_per_tok": 2}),
        ("yarn", {"rope_parameters": DEEP_YARN | {"mscale": 0.707, "mscale_all_dim": 0.708}}),
    ),
    refused=(
        ("plain", {"n_group": 3}, "n_routed_experts % n_group == 0"),
        ("plain", {"num_experts_per_tok": 5}, "num_experts_per_tok <= n_routed_experts / n_group * topk_group"),
        ("plain", {"topk_method": "noaux_tc"}, "topk_method"),
        ("plain", {"scoring_func": "sigmoid"}, "scoring_func"),
        ("plain", {"norm_topk_prob": True}, "norm_topk_prob"),
        ("plain", {"moe_layer_freq": 2}, "moe_layer_freq"),
        ("plain", {"rope_interleave": False}, "rope_interleave"),
        ("plain", {"mlp_bias": True}, "mlp_bias"),
    ),
)
