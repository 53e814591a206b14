"""deepseek_v3, tiny."""

from kinds import DEEP_YARN, DEEPSEEK, Kind

KIND = Kind(
    tiny=DEEPSEEK,
    quirks={
        "plain": {},
        "no query rank": {"q_lora_rank": None},
        "yarn": {"rope_parameters": DEEP_YARN},
        "yarn, two mscales": {"rope_parameters": DEEP_YARN | {"mscale": 0.7}},
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
        ("yarn", {"rope_parameters": DEEP_YARN | {"mscale": 1.01, "mscale_all_dim": 1.01}}),
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
