"""glm4_moe, tiny."""

from kinds import LLAMA, YARN, Kind

KIND = Kind(
    tiny=LLAMA
    | {
        "num_hidden_layers": 3,
        "moe_intermediate_size": 16,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 3,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 2.5,
        "use_qk_norm": True,
    },
    quirks={
        "plain": {},
        "biases, no norms": {"attention_bias": True, "use_qk_norm": False, "rms_norm_eps": 0.01},
        "groups": {"n_group": 4, "topk_group": 2, "n_shared_experts": 2},
        "a quarter turns": {"partial_rotary_factor": 0.25, "norm_topk_prob": False, "tie_word_embeddings": True},
        "all turns": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}},
        "yarn": {"rope_parameters": YARN | {"partial_rotary_factor": 0.5}, "head_dim": 32},
        "no dense layer, own width": {"head_dim": 16, "first_k_dense_replace": 0, "hidden_act": "gelu"},
    },
    dtypes=("plain", "biases, no norms"),
    changes=(
        ("plain", {"routed_scaling_factor": 2.501}),
        ("plain", {"norm_topk_prob": False}),
        ("plain", {"num_experts_per_tok": 2}),
        ("plain", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}}),
        ("groups", {"topk_group": 3}),
        ("groups", {"n_group": 2}),
    ),
    refused=(
        ("plain", {"n_group": 3}, "n_routed_experts % n_group == 0"),
        ("plain", {"topk_group": 2}, "topk_group <= n_group"),
        ("plain", {"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ("plain", {"scoring_func": "softmax"}, "scoring_func"),
        ("plain", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.5}}, "partial_rotary_factor"),
    ),
)
