"""ernie4_5, tiny."""

from kinds import LLAMA, LLAMA3, Kind

KIND = Kind(
    tiny=LLAMA | {"head_dim": 8, "pad_token_id": 0},
    quirks={
        "plain": {},
        "biases, own head": {"use_bias": True, "tie_word_embeddings": False, "head_dim": 12},
        "llama3": {"rope_parameters": LLAMA3, "rms_norm_eps": 0.01, "num_key_value_heads": 1},
        "one group, a wide epsilon": {"num_key_value_heads": 1, "rms_norm_eps": 0.02},
    },
    changes=(("plain", {"rope_parameters": {"rope_type": "default", "rope_theta": 510_000.0}}), ("plain", {"hidden_act": "gelu"})),
    refused=(
        ("plain", {"attention_bias": True}, "attention_bias"),
        ("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),
    ),
)
