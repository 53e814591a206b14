"""stablelm, tiny."""

from kinds import LLAMA, Kind

KIND = Kind(
    tiny=LLAMA | {"hidden_size": 64},
    quirks={
        "plain": {},
        "biases, side by side": {"use_qkv_bias": True, "use_parallel_residual": True, "layer_norm_eps": 0.01},
        "as 12B": {"qk_layernorm": True, "use_parallel_residual": True, "layer_norm_eps": 0.01},
        "whole heads turn, relu, tied": {
            "hidden_act": "relu",
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 25_000.0, "partial_rotary_factor": 1.0},
        },
        "one group, a wide epsilon": {"num_key_value_heads": 1, "layer_norm_eps": 0.02, "qk_layernorm": True, "use_qkv_bias": True},
    },
    dtypes=("plain", "as 12B"),
    changes=(
        ("plain", {"hidden_act": "gelu"}),
        ("plain", {"layer_norm_eps": 1.1e-05}),
        ("plain", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
    ),
    refused=(("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),),
)
