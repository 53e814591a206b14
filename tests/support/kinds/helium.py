"""helium, tiny."""

from kinds import LLAMA, Kind

KIND = Kind(
    tiny=LLAMA | {"head_dim": 8},
    quirks={
        "plain": {},
        "biases": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4},
        "tied, gelu": {"tie_word_embeddings": True, "hidden_act": "gelu", "rms_norm_eps": 0.01},
        "one group, a wide epsilon": {"num_key_value_heads": 1, "rms_norm_eps": 0.02},
    },
    changes=(("plain", {"rope_parameters": {"rope_type": "default", "rope_theta": 101_000.0}}), ("plain", {"hidden_act": "gelu"})),
    refused=(
        ("plain", {"head_dim": 12}, "num_attention_heads * head_dim == hidden_size"),
        ("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),
    ),
)
