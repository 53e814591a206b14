"""gpt_oss, tiny."""

from kinds import LLAMA, Kind

KIND = Kind(
    tiny=LLAMA
    | {
        "intermediate_size": 16,
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
    },
    quirks={
        "plain": {},
        "yarn without truncation": {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 150000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "truncate": False,
                "beta_fast": 32.0,
            }
        },
        "all full": {"layer_types": ["full_attention", "full_attention"]},
        "narrow windows": {"sliding_window": 3, "layer_types": ["sliding_attention", "sliding_attention"], "num_experts_per_tok": 4},
        "no biases": {"attention_bias": False, "num_key_value_heads": 4},
    },
    dtypes=("plain", "yarn without truncation"),
    changes=(
        ("plain", {"sliding_window": 9}),
        ("plain", {"layer_types": ["full_attention", "sliding_attention"]}),
        ("plain", {"num_experts_per_tok": 1}),
        (
            "yarn without truncation",
            {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 150000.0,
                    "factor": 4.0,
                    "original_max_position_embeddings": 32,
                    "truncate": True,
                    "beta_fast": 32.0,
                }
            },
        ),
    ),
    refused=(
        ("plain", {"num_experts_per_tok": 5}, "num_experts_per_tok <= num_local_experts"),
        ("plain", {"layer_types": ["full_attention", "linear_attention"]}, "layer_types"),
        ("plain", {"swiglu_limit": 8.0}, "swiglu_limit"),
        ("plain", {"experts_per_token": 3}, "experts_per_token"),
    ),
)
