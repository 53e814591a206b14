"""internlm3, tiny."""

from kinds import LLAMA, Kind

DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 6.0}
KIND = Kind(
    tiny=LLAMA | {"head_dim": 8},
    quirks={
        "plain": {},
        "biases": {"attention_bias": True, "mlp_bias": True},
        "tied, one group, wider heads": {"tie_word_embeddings": True, "num_key_value_heads": 1, "head_dim": 12, "hidden_act": "gelu"},
        "dynamic": {"rope_parameters": DYNAMIC, "max_position_embeddings": 16, "rms_norm_eps": 0.01},
    },
    changes=(("plain", {"rms_norm_eps": 1.1e-5}), ("dynamic", {"rope_parameters": DYNAMIC | {"factor": 5.0}})),
    refused=(
        ("biases", {"mlp_bias": False}, "qkv_bias == bias"),
        ("plain", {"qkv_bias": True}, "attention_bias"),
        ("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),
    ),
)
