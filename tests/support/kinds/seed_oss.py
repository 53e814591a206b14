"""seed_oss, tiny."""

from kinds import LLAMA, Kind

KIND = Kind(
    tiny=LLAMA | {"head_dim": 12, "pad_token_id": 0},
    quirks={
        "plain": {},
        "no biases": {"attention_bias": False, "num_key_value_heads": 1},
        "every bias, tied": {"attention_out_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "rms_norm_eps": 0.01},
        "one group, a wide epsilon": {"num_key_value_heads": 1, "rms_norm_eps": 0.02},
    },
    changes=(("plain", {"rope_parameters": {"rope_type": "default", "rope_theta": 10100.0}}), ("plain", {"hidden_act": "gelu"})),
    refused=(("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),),
)
