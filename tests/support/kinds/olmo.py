"""olmo, tiny."""

from kinds import LLAMA, Kind

KIND = Kind(
    tiny=LLAMA,
    quirks={
        "plain": {},
        "clipped": {"clip_qkv": 2.5, "num_key_value_heads": 1},
        "biases, tied": {"attention_bias": True, "tie_word_embeddings": True, "hidden_act": "gelu"},
        "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}, "clip_qkv": 4.0},
    },
    changes=(("plain", {"clip_qkv": 1.0}), ("clipped", {"clip_qkv": 2.6}), ("plain", {"hidden_act": "gelu"})),
    refused=(("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),),
)
