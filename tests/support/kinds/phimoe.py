"""phimoe, tiny."""

from kinds import LLAMA, LONGROPE, Kind

# transformers takes the short factors for texts of any length, so the prompts here are shorter than the original context
LONG = LONGROPE | {"original_max_position_embeddings": 64, "short_mscale": 1.24, "long_mscale": 1.24}

KIND = Kind(
    tiny=LLAMA | {"intermediate_size": 24, "num_local_experts": 5, "router_jitter_noise": 0.3},
    quirks={
        "plain": {},
        "biases, window": {"attention_bias": True, "lm_head_bias": True, "sliding_window": 7},
        "longrope": {"hidden_size": 64, "original_max_position_embeddings": 64, "rope_parameters": LONG},
        "far, tied": {"router_jitter_noise": 2.0, "tie_word_embeddings": True, "rms_norm_eps": 0.01, "hidden_act": "gelu"},
    },
    changes=(
        ("plain", {"router_jitter_noise": 0.6}),
        ("biases, window", {"sliding_window": 8}),
        ("longrope", {"rope_parameters": LONG | {"short_mscale": 1.3, "long_mscale": 1.3}}),
    ),
    reads=("router_jitter_noise",),
    refused=(
        ("plain", {"num_experts_per_tok": 3}, "num_experts_per_tok == 2"),
        ("longrope", {"rope_parameters": LONG | {"long_mscale": 1.3}}, "short_mscale == long_mscale"),
        ("longrope", {"rope_parameters": LONG | {"rope_type": "yarn", "factor": 2.0}}, "rope_parameters.rope_type"),
    ),
)
