"""qwen2, tiny."""

from kinds import LLAMA, YARN, Kind

KIND = Kind(
    tiny=LLAMA | {"rope_theta": 1000000.0},
    quirks={
        "plain": {},
        "windows by type": {"use_sliding_window": True, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
        "windows from a layer on": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1, "num_hidden_layers": 3},
        "window not used": {"use_sliding_window": False, "sliding_window": 4, "max_window_layers": 0, "rms_norm_eps": 0.01},
        "tied, one kv head": {"tie_word_embeddings": True, "num_key_value_heads": 1, "hidden_act": "gelu"},
        "yarn": {"rope_parameters": YARN, "hidden_size": 64},
    },
    dtypes=("plain", "yarn"),
    changes=(
        ("windows by type", {"sliding_window": 6}),
        ("windows by type", {"layer_types": ["full_attention", "sliding_attention"]}),
        ("windows from a layer on", {"layer_types": ["full_attention"] * 3}),
        ("plain", {"rms_norm_eps": 1.1e-06}),
    ),
    refused=(
        ("windows by type", {"use_sliding_window": False}, "use_sliding_window"),
        ("windows by type", {"layer_types": ["full_attention"]}, "layer_types"),
        ("windows by type", {"sliding_window": 0}, "sliding_window"),
        ("windows by type", {"sliding_window": None}, "sliding_window"),
        ("plain", {"attention_bias": False}, "attention_bias"),
    ),
)
