"""olmo2, tiny."""

from kinds import LLAMA, YARN, Kind

KIND = Kind(
    tiny=LLAMA | {"pad_token_id": 0},
    quirks={
        "plain": {},
        "biases, tied, heads of another width": {"attention_bias": True, "tie_word_embeddings": True, "head_dim": 16, "rms_norm_eps": 0.01},
        "yarn, gelu": {"rope_parameters": YARN, "hidden_act": "gelu", "head_dim": 24},
        "one group, a wide epsilon": {"num_key_value_heads": 1, "rms_norm_eps": 0.02},
    },
    dtypes=("plain", "yarn, gelu"),
    changes=(("plain", {"hidden_act": "gelu"}), ("plain", {"rms_norm_eps": 1.1e-05})),
    refused=(("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),),
)
