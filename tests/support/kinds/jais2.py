"""jais2, tiny."""

from kinds import LLAMA, LLAMA3, Kind

KIND = Kind(
    tiny=LLAMA,
    quirks={
        "plain": {},
        "no biases": {"attention_bias": False, "mlp_bias": False, "layer_norm_eps": 0.01},
        "tied, one group, wider heads": {"tie_word_embeddings": True, "num_key_value_heads": 1, "head_dim": 12},
        "llama3": {"rope_parameters": LLAMA3, "head_dim": 16, "hidden_act": "gelu"},
    },
    changes=(("plain", {"layer_norm_eps": 1.1e-5}), ("plain", {"hidden_act": "relu"})),
    refused=(
        ("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),
        ("plain", {"layer_norm_eps": 0.0}, "layer_norm_eps"),
    ),
)
