"""hunyuan_v1_dense, tiny."""

from kinds import LLAMA, Kind

ALPHA = {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0, "factor": 1.0}

KIND = Kind(
    tiny=LLAMA | {"head_dim": 12},
    quirks={
        "plain": {},
        "alpha": {"rope_parameters": ALPHA, "rms_norm_eps": 0.01},
        "biases, tied": {"attention_bias": True, "tie_word_embeddings": True, "num_key_value_heads": 1},
        "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}, "hidden_act": "gelu"},
    },
    changes=(
        ("plain", {"rms_norm_eps": 1.1e-5}),
        ("alpha", {"rope_parameters": ALPHA | {"alpha": 51.0}}),
        ("plain", {"hidden_act": "gelu"}),
    ),
    refused=(
        ("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),
        ("plain", {"use_cla": True}, "use_cla"),
        ("plain", {"use_qk_norm": False}, "use_qk_norm"),
        ("alpha", {"head_dim": 2}, "rotary width > 2"),
    ),
)
