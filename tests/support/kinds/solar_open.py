"""solar_open, tiny."""

from kinds import LLAMA, YARN, Kind

KIND = Kind(
    tiny=LLAMA
    | {
        "hidden_size": 64,
        "head_dim": 16,
        "moe_intermediate_size": 16,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
    },
    quirks={
        "plain": {},
        "groups, biases": {"n_group": 4, "topk_group": 2, "attention_bias": True, "routed_scaling_factor": 2.5},
        "two shared, shares as they are": {"n_shared_experts": 2, "norm_topk_prob": False, "hidden_act": "gelu"},
        "yarn, tied": {"rope_parameters": YARN, "tie_word_embeddings": True, "num_key_value_heads": 1, "rms_norm_eps": 0.01},
    },
    changes=(
        ("plain", {"num_experts_per_tok": 3}),
        ("plain", {"routed_scaling_factor": 1.01}),
        ("groups, biases", {"topk_group": 1}),
    ),
    refused=(
        ("plain", {"n_group": 3}, "n_routed_experts % n_group == 0"),
        ("plain", {"first_k_dense_replace": 1}, "first_k_dense_replace"),
        ("plain", {"scoring_func": "softmax"}, "scoring_func"),
    ),
)
