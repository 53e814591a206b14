"""olmo3, tiny."""

from kinds import LLAMA, YARN, Kind

PLAIN = {"rope_type": "default", "rope_theta": 500.0}

KIND = Kind(
    tiny=LLAMA | {"pad_token_id": 0, "num_hidden_layers": 4, "sliding_window": 6},
    quirks={
        "plain": {},
        "listed, biases": {"layer_types": ["full_attention", "sliding_attention"], "num_hidden_layers": 2, "attention_bias": True},
        "yarn in full layers": {
            "rope_parameters": {"full_attention": YARN | {"rope_theta": 500.0}, "sliding_attention": PLAIN},
            "head_dim": 24,
            "sliding_window": 9,
        },
        "one group, a wide epsilon": {"num_key_value_heads": 1, "rms_norm_eps": 0.02},
    },
    dtypes=("plain", "yarn in full layers"),
    changes=(
        ("plain", {"sliding_window": 7}),
        ("plain", {"layer_types": ["full_attention"] + ["sliding_attention"] * 3}),
        ("yarn in full layers", {"rope_parameters": {"full_attention": PLAIN, "sliding_attention": PLAIN}}),
    ),
    refused=(
        ("plain", {"layer_types": ["full_attention"] * 3}, "layer_types"),
        ("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),
    ),
)
