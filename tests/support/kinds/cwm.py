"""cwm, tiny."""

from kinds import LLAMA, LLAMA3, Kind

KIND = Kind(
    tiny=LLAMA | {"num_hidden_layers": 5, "head_dim": 16, "sliding_window": 6, "rope_parameters": LLAMA3},
    quirks={
        "plain": {},
        "listed": {"layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2, "mlp_bias": True},
        "tied, one group": {"tie_word_embeddings": True, "num_key_value_heads": 1, "num_hidden_layers": 2, "hidden_act": "gelu"},
        "a wide epsilon, linear": {
            "rms_norm_eps": 0.01,
            "num_hidden_layers": 2,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0},
        },
    },
    changes=(
        ("plain", {"sliding_window": 7}),
        ("plain", {"layer_types": ["full_attention"] * 5}),
        ("plain", {"rope_parameters": LLAMA3 | {"factor": 9.0}}),
    ),
    refused=(
        ("plain", {"layer_types": ["full_attention"]}, "layer_types"),
        ("plain", {"attention_bias": True}, "attention_bias"),
        ("plain", {"sliding_window": 0}, "sliding_window"),
        ("plain", {"rope_parameters": None, "rope_theta": 1e4}, "rope_theta"),
    ),
)
