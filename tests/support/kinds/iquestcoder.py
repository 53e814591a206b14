"""iquestcoder, tiny."""

from kinds import LLAMA, YARN, Kind

KIND = Kind(
    tiny=LLAMA | {"head_dim": 12},
    quirks={
        "plain": {},
        "biases": {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 0.01},
        "yarn, one group": {"rope_parameters": YARN, "head_dim": 16, "num_key_value_heads": 1},
        "tied": {"tie_word_embeddings": True, "hidden_act": "gelu"},
    },
    changes=(("plain", {"rms_norm_eps": 1.1e-5}), ("yarn, one group", {"rope_parameters": YARN | {"factor": 5.0}})),
    refused=(
        ("plain", {"clip_qkv": 8.0}, "clip_qkv"),
        ("plain", {"use_sliding_window": True}, "use_sliding_window"),
    ),
)
