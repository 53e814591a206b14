"""phi, tiny."""

from kinds import LLAMA, Kind

KIND = Kind(
    tiny={k: v for k, v in LLAMA.items() if k != "num_key_value_heads"} | {"hidden_size": 48},
    quirks={
        "plain": {},
        "normed queries and keys": {"qk_layernorm": True, "num_key_value_heads": 2, "layer_norm_eps": 0.01},
        "whole heads turn, relu": {
            "hidden_act": "relu",
            "rope_parameters": {"rope_type": "default", "rope_theta": 25_000.0, "partial_rotary_factor": 1.0},
        },
        "one group, a wide epsilon": {"num_key_value_heads": 1, "layer_norm_eps": 0.02},
    },
    changes=(
        ("plain", {"hidden_act": "gelu"}),
        ("plain", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.34}}),
        ("plain", {"layer_norm_eps": 1.1e-05}),
    ),
    refused=(
        ("plain", {"num_attention_heads": 5, "num_key_value_heads": 5}, "hidden_size % num_attention_heads == 0"),
        ("plain", {"attention_bias": False}, "attention_bias"),
    ),
)
