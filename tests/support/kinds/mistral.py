"""mistral, tiny."""

from kinds import LLAMA, YARN, Kind

KIND = Kind(
    tiny=LLAMA | {"sliding_window": 6},
    quirks={
        "plain": {},
        "no window": {"sliding_window": None, "rms_norm_eps": 0.01},
        "wide window, own head width": {"sliding_window": 4096, "head_dim": 12, "hidden_act": "gelu"},
        "narrow window, tied": {"sliding_window": 3, "num_key_value_heads": 1, "tie_word_embeddings": True},
        "yarn": {"head_dim": 16, "sliding_window": 20, "rope_parameters": YARN},
    },
    dtypes=("plain", "yarn"),
    changes=(
        ("plain", {"sliding_window": 7}),
        ("plain", {"sliding_window": None}),
        ("no window", {"sliding_window": 36}),
        ("plain", {"hidden_act": "gelu"}),
        ("plain", {"rope_parameters": {"rope_type": "default", "rope_theta": 10001.0}}),
    ),
    refused=(
        ("plain", {"sliding_window": 0}, "sliding_window"),
        ("plain", {"attention_bias": True}, "attention_bias"),
        ("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),
        ("plain", {"layer_types": ["sliding_attention", "full_attention"]}, "layer_types"),
    ),
)
