"""lfm3, tiny."""

from kinds import LLAMA, YARN, Kind

NEAR = {"rope_type": "default", "rope_theta": 500.0}
HALF = {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5}

KIND = Kind(
    tiny=LLAMA
    | {
        "num_hidden_layers": 3,
        "layer_types": ["conv", "full_attention", "sliding_attention"],
        "head_dim": 8,
        "sliding_window": 6,
        "pad_token_id": 0,
    },
    quirks={
        "plain": {},
        "by default, longer, biases": {"layer_types": None, "num_hidden_layers": 5, "conv_L_cache": 9, "conv_bias": True},
        "norms before alone, own head": {"use_sandwich_norm": False, "tie_word_embeddings": False, "norm_eps": 0.01},
        "no gates, biases": {"use_attention_gate": False, "attention_bias": True, "num_key_value_heads": 1},
        "wider heads, stretched": {
            "head_dim": 16,
            "rope_parameters": {"full_attention": HALF | {"factor": 2.0}, "sliding_attention": NEAR},
            "num_key_value_heads": 4,
        },
        "no windows, yarn": {
            "layer_types": ["full_attention", "conv", "full_attention"],
            "rope_parameters": {"full_attention": YARN, "sliding_attention": NEAR},
        },
    },
    dtypes=("plain", "norms before alone, own head"),
    changes=(
        ("plain", {"sliding_window": 7}),
        ("plain", {"layer_types": ["conv", "sliding_attention", "full_attention"]}),
        ("plain", {"rope_parameters": {"full_attention": HALF | {"partial_rotary_factor": 0.25}, "sliding_attention": NEAR}}),
    ),
    refused=(
        ("plain", {"layer_types": ["conv"]}, "layer_types"),
        ("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),
        ("plain", {"rope_parameters": {"full_attention": HALF}}, "rope_parameters.sliding_attention"),
        ("plain", {"rope_parameters": NEAR}, "rope_parameters.full_attention"),
        ("plain", {"conv_L_cache": 0}, "conv_L_cache"),
    ),
)
