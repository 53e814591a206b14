"""granite_swa, tiny."""

from kinds import LLAMA, YARN, Kind

KIND = Kind(
    tiny=LLAMA
    | {
        "num_hidden_layers": 3,
        "embedding_multiplier": 12.0,
        "attention_multiplier": 0.25,
        "residual_multiplier": 0.22,
        "logits_scaling": 8.0,
        "sliding_window": 6,
    },
    quirks={
        "plain": {},
        "own bases, one without": {"layer_rope_theta": [5e5, 0, 100.0], "tie_word_embeddings": False},
        "biases, all slide": {
            "layer_types": ["sliding_attention"] * 2,
            "num_hidden_layers": 2,
            "attention_bias": True,
            "mlp_bias": True,
            "hidden_act": "gelu",
        },
        "yarn, all full": {
            "layer_types": ["full_attention"] * 2,
            "num_hidden_layers": 2,
            "rope_parameters": YARN,
            "layer_rope_theta": [1e4, 500],
            "num_key_value_heads": 1,
            "head_dim": 16,
            "rms_norm_eps": 0.01,
        },
    },
    changes=(
        ("plain", {"sliding_window": 7}),
        ("plain", {"attention_multiplier": 0.26}),
        ("plain", {"layer_rope_theta": [1e4, 1e4, 0.0]}),
        ("own bases, one without", {"layer_rope_theta": [5e5, 0, 101.0]}),
    ),
    refused=(
        ("plain", {"layer_types": ["full_attention"]}, "layer_types"),
        ("plain", {"layer_rope_theta": [1e4, 1e4]}, "layer_rope_theta"),
        ("plain", {"layer_rope_theta": [1e4, 0.5, 1e4]}, "layer_rope_theta"),
        ("plain", {"sliding_window": None}, "sliding_window"),
        ("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),
    ),
    reads=("residual_multiplier",),
)
