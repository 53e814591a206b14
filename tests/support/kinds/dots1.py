"""dots1, tiny."""

from kinds import LLAMA, YARN, Kind

KIND = Kind(
    tiny=LLAMA
    | {
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "moe_intermediate_size": 16,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 4,
        "topk_group": 2,
        "first_k_dense_replace": 1,
        "norm_topk_prob": True,
        "sliding_window": None,
    },
    quirks={
        "plain": {},
        "windows above": {"sliding_window": 6, "max_window_layers": 1, "norm_topk_prob": False},
        "listed, two shared": {
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "n_shared_experts": 2,
            "routed_scaling_factor": 2.5,
        },
        "yarn, biases": {"rope_parameters": YARN, "attention_bias": True, "n_group": 1, "topk_group": 1, "num_attention_heads": 2},
    },
    dtypes=("plain",),
    changes=(("windows above", {"sliding_window": 7}), ("plain", {"num_experts_per_tok": 3}), ("plain", {"topk_group": 1})),
    refused=(
        ("plain", {"layer_types": ["full_attention"] * 2}, "layer_types"),
        ("plain", {"layer_types": ["sliding_attention"] * 3}, "sliding_window"),
        ("plain", {"n_group": 3}, "n_routed_experts % n_group == 0"),
    ),
)
