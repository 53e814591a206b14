"""smollm3, tiny."""

from kinds import LLAMA, YARN, Kind

KIND = Kind(
    tiny=LLAMA | {"num_hidden_layers": 4, "pad_token_id": 0},
    quirks={
        "plain": {},
        "every second, window": {"no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 6, "mlp_bias": True},
        "listed, biases, own head": {"no_rope_layers": [0, 1, 1, 0], "attention_bias": True, "tie_word_embeddings": False},
        "yarn": {"rope_parameters": YARN, "rms_norm_eps": 0.01, "hidden_act": "gelu"},
    },
    dtypes=("plain",),
    changes=(
        ("plain", {"no_rope_layers": [1, 1, 1, 1]}),
        ("plain", {"rope_parameters": {"rope_type": "default", "rope_theta": 2_100_000.0}}),
        ("every second, window", {"sliding_window": 7}),
    ),
    refused=(
        ("plain", {"no_rope_layers": [1, 0]}, "len(no_rope_layers) >= num_hidden_layers"),
        ("plain", {"layer_types": ["sliding_attention"] * 4, "sliding_window": 6}, "use_sliding_window"),
        ("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),
    ),
)
