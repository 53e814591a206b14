"""lfm2, tiny."""

from kinds import LLAMA, Kind

CONVS = ["conv", "full_attention", "conv"]

KIND = Kind(
    tiny=LLAMA | {"hidden_size": 64, "num_hidden_layers": 3, "layer_types": CONVS, "block_multiple_of": 8, "pad_token_id": 0},
    quirks={
        "plain": {},
        "by indices, apart": {
            "layer_types": None,
            "full_attn_idxs": [1, 2],
            "num_attention_heads": 2,
            "tie_word_embeddings": False,
            "norm_eps": 0.01,
        },
        "longer, biases": {"conv_L_cache": 5, "conv_bias": True, "layer_types": ["conv", "conv", "full_attention"]},
        "a final width": {
            "block_auto_adjust_ff_dim": False,
            "num_key_value_heads": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
        "a wider factor": {"block_ffn_dim_multiplier": 1.3, "conv_L_cache": 1},
    },
    dtypes=("plain", "longer, biases"),
    changes=(
        ("plain", {"norm_eps": 1.1e-05}),
        ("a final width", {"rope_parameters": {"rope_type": "default", "rope_theta": 600.0}}),
    ),
    refused=(
        ("plain", {"layer_types": ["conv"] * 4}, "layer_types"),
        ("plain", {"conv_L_cache": 0}, "conv_L_cache"),
        ("plain", {"block_use_swiglu": False}, "block_use_swiglu"),
        ("plain", {"conv_dim": 32}, "conv_dim"),
        ("by indices, apart", {"full_attn_idxs": [3]}, "full_attn_idxs"),
    ),
)
