"""arcee, tiny."""

from kinds import LLAMA, YARN, Kind

KIND = Kind(
    tiny=LLAMA,
    quirks={
        "plain": {},
        "yarn, biases": {"rope_parameters": YARN, "attention_bias": True, "mlp_bias": True},
        "silu, tied": {"hidden_act": "silu", "tie_word_embeddings": True, "rms_norm_eps": 0.01},
        "one group, a wide epsilon": {"num_key_value_heads": 1, "rms_norm_eps": 0.02},
    },
    dtypes=("plain",),
    changes=(("plain", {"hidden_act": "relu"}), ("plain", {"rope_parameters": {"rope_type": "default", "rope_theta": 10100.0}})),
    refused=(("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),),
)
