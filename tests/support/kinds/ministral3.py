"""ministral3, tiny."""

from kinds import LLAMA, YARN, Kind

GROWS = YARN | {"llama_4_scaling_beta": 0.7, "original_max_position_embeddings": 5, "mscale": 1.0, "mscale_all_dim": 1.0}
KIND = Kind(
    tiny=LLAMA | {"head_dim": 16, "rope_parameters": GROWS},
    quirks={
        "plain": {},
        "windows, one group": {"sliding_window": 6, "num_key_value_heads": 1, "hidden_act": "gelu"},
        "tied, a wide epsilon": {"tie_word_embeddings": True, "rms_norm_eps": 0.01, "head_dim": 12},
        "grown slowly": {
            "rope_parameters": {
                "rope_type": "linear",
                "factor": 2.0,
                "rope_theta": 1e4,
                "llama_4_scaling_beta": 0.1,
                "original_max_position_embeddings": 3,
            }
        },
    },
    dtypes=("plain",),
    changes=(
        ("plain", {"rope_parameters": GROWS | {"llama_4_scaling_beta": 0.701}}),
        ("plain", {"rope_parameters": GROWS | {"original_max_position_embeddings": 6}}),
        ("windows, one group", {"sliding_window": 7}),
    ),
    refused=(
        ("plain", {"rope_parameters": YARN}, "llama_4_scaling_beta"),
        ("plain", {"attention_bias": True}, "attention_bias"),
        ("plain", {"rope_parameters": None, "rope_theta": 1e4}, "rope_theta"),
        ("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),
    ),
)
