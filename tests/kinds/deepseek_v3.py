"""deepseek_v3, tiny."""

from kinds import DEEP_YARN, LLAMA, Kind

KIND = Kind(
    tiny=LLAMA
    | {
        "num_hidden_layers": 3,
        "num_key_value_heads": 4,
        "moe_intermediate_size": 16,
        "q_lora_rank": 24,
        "kv_lora_rank": 20,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 4,
        "topk_group": 2,
        "first_k_dense_replace": 1,
    },
    quirks={
        "plain": {},
        "no query rank": {"q_lora_rank": None},
        "yarn": {"rope_parameters": DEEP_YARN},
        "yarn, two mscales": {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 40.0,
                "original_max_position_embeddings": 32,
                "mscale": 0.7,
                "mscale_all_dim": 1.0,
                "beta_fast": 32,
                "beta_slow": 1,
            }
        },
        "one group": {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 3},
        "shares not normalised": {"norm_topk_prob": False, "routed_scaling_factor": 1.5},
        "no shared expert": {"n_shared_experts": 0},
        "two shared experts": {"n_shared_experts": 2, "tie_word_embeddings": True},
        "halves turn": {"rope_interleave": False},
        "biases": {"attention_bias": True, "rms_norm_eps": 0.01},
        "all dense": {"first_k_dense_replace": 3},
    },
    dtypes=("plain", "yarn", "one group", "biases"),
    changes=(
        ("plain", {"rope_interleave": False}),
        ("plain", {"routed_scaling_factor": 2.501}),
        ("plain", {"norm_topk_prob": False}),
        ("plain", {"n_group": 2}),
        ("plain", {"topk_group": 3}),
        ("plain", {"num_experts_per_tok": 3}),
        (
            "yarn",
            {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 10000.0,
                    "factor": 40.0,
                    "original_max_position_embeddings": 32,
                    "mscale": 1.01,
                    "mscale_all_dim": 1.01,
                    "beta_fast": 32,
                    "beta_slow": 1,
                }
            },
        ),
    ),
    refused=(
        ("plain", {"n_group": 3}, "n_routed_experts % n_group == 0"),
        ("plain", {"topk_group": 5}, "topk_group <= n_group"),
        ("plain", {"num_experts_per_tok": 5}, "num_experts_per_tok <= n_routed_experts / n_group * topk_group"),
        ("plain", {"n_routed_experts": 0}, "n_routed_experts"),
        ("plain", {"scoring_func": "softmax"}, "scoring_func"),
        ("plain", {"topk_method": "greedy"}, "topk_method"),
        ("plain", {"moe_layer_freq": 2}, "moe_layer_freq"),
    ),
)
