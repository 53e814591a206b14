"""nemotron, tiny."""

from kinds import LLAMA, Kind

KIND = Kind(
    tiny=LLAMA | {"head_dim": 8},
    quirks={
        "plain": {},
        "biases, whole heads turn": {
            "attention_bias": True,
            "mlp_bias": True,
            "num_key_value_heads": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 25_000.0, "partial_rotary_factor": 1.0},
        },
        "relu, tied": {"hidden_act": "relu", "tie_word_embeddings": True, "norm_eps": 0.01},
        "one group, a wide epsilon": {"num_key_value_heads": 1, "norm_eps": 0.02},
    },
    dtypes=("plain",),
    changes=(("plain", {"hidden_act": "relu"}), ("plain", {"norm_eps": 1.1e-05})),
    refused=(("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),),
)
