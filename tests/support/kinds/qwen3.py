"""qwen3, tiny."""

from kinds import LLAMA, YARN, Kind

KIND = Kind(
    tiny=LLAMA | {"head_dim": 16},
    quirks={
        "plain": {},
        "windows by type": {"use_sliding_window": True, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
        "windows from a layer on": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1, "num_hidden_layers": 3},
        "biases, tied": {"attention_bias": True, "tie_word_embeddings": True, "num_key_value_heads": 1},
        "yarn": {"rope_parameters": YARN, "head_dim": 24},
    },
    dtypes=("plain", "yarn"),
    changes=(("windows by type", {"sliding_window": 6}), ("windows by type", {"layer_types": ["full_attention", "sliding_attention"]})),
    refused=(
        ("windows by type", {"layer_types": ["full_attention"]}, "layer_types"),
        ("windows by type", {"use_sliding_window": False}, "use_sliding_window"),
    ),
)
