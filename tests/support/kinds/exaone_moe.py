"""exaone_moe, tiny."""

from kinds import LLAMA, LLAMA3, Kind

KIND = Kind(
    tiny=LLAMA
    | {
        "num_hidden_layers": 4,
        "sliding_window": 6,
        "moe_intermediate_size": 16,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_shared_experts": 1,
        "routed_scaling_factor": 2.5,
    },
    quirks={
        "plain": {},
        "listed, groups": {
            "layer_types": ["full_attention", "sliding_attention"],
            "mlp_layer_types": ["sparse", "dense"],
            "num_hidden_layers": 2,
            "n_group": 4,
            "topk_group": 2,
        },
        "all full, llama3": {
            "layer_types": ["full_attention"] * 2,
            "num_hidden_layers": 2,
            "rope_parameters": LLAMA3,
            "tie_word_embeddings": True,
            "head_dim": 16,
        },
        "two shared, every second": {
            "sliding_window_pattern": 2,
            "num_shared_experts": 2,
            "norm_topk_prob": False,
            "num_hidden_layers": 2,
            "hidden_act": "gelu",
        },
    },
    changes=(
        ("plain", {"sliding_window": 7}),
        ("plain", {"num_experts_per_tok": 3}),
        ("plain", {"routed_scaling_factor": 2.51}),
    ),
    refused=(
        ("plain", {"layer_types": ["full_attention"] * 3}, "layer_types"),
        ("plain", {"mlp_layer_types": ["dense"]}, "mlp_layer_types"),
        ("plain", {"is_moe_layer": [True] * 4}, "is_moe_layer"),
        ("plain", {"n_group": 3}, "n_routed_experts % n_group == 0"),
    ),
)
