"""starcoder2, tiny."""

from kinds import LLAMA, Kind

KIND = Kind(
    tiny=LLAMA | {"norm_epsilon": 1e-5},
    quirks={
        "plain": {},
        "window": {"sliding_window": 5, "num_key_value_heads": 1},
        "no biases, own head": {"use_bias": False, "tie_word_embeddings": False},
        "linear": {
            "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
            "norm_epsilon": 0.01,
            "hidden_act": "silu",
        },
    },
    changes=(("window", {"sliding_window": 6}), ("plain", {"norm_epsilon": 1.1e-5}), ("plain", {"hidden_act": "gelu"})),
    refused=(
        ("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),
        ("plain", {"mlp_type": "gated"}, "mlp_type"),
        ("plain", {"norm_type": "rms_norm"}, "norm_type"),
    ),
)
