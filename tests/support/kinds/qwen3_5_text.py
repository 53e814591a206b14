"""qwen3_5_text, tiny."""

from kinds import LLAMA, Kind

DELTA = {
    "head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 12,
}
KINDS = ["linear_attention", "full_attention", "linear_attention"]

KIND = Kind(
    tiny=LLAMA | DELTA | {"num_hidden_layers": 3, "layer_types": KINDS},
    quirks={
        "plain": {},
        "by an interval, tied": {"layer_types": None, "full_attention_interval": 2, "tie_word_embeddings": True, "rms_norm_eps": 0.01},
        "one key head, short": {
            "linear_num_key_heads": 1,
            "linear_conv_kernel_dim": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]},
        },
        "each its own key, biases": {"linear_num_key_heads": 4, "linear_value_head_dim": 8, "attention_bias": True, "hidden_act": "gelu"},
    },
    dtypes=("plain", "one key head, short"),
    changes=(
        ("plain", {"rms_norm_eps": 1.1e-06}),
        ("one key head, short", {"rope_parameters": {"rope_type": "default", "rope_theta": 600.0, "partial_rotary_factor": 0.5}}),
    ),
    refused=(
        ("plain", {"layer_types": ["linear_attention"] * 2}, "layer_types"),
        ("plain", {"linear_num_key_heads": 3}, "linear_num_value_heads % linear_num_key_heads == 0"),
        ("plain", {"linear_conv_kernel_dim": 0}, "linear_conv_kernel_dim"),
    ),
)
