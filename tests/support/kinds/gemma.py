"""gemma, tiny."""

from kinds import LLAMA, Kind

KIND = Kind(
    tiny=LLAMA | {"head_dim": 16},
    quirks={
        "plain": {},
        "gelu in name": {"hidden_act": "gelu", "num_key_value_heads": 1},
        "biases, own head": {"attention_bias": True, "tie_word_embeddings": False, "hidden_act": "silu"},
        "another width": {"hidden_size": 24, "head_dim": 12, "rms_norm_eps": 0.01, "num_key_value_heads": 4},
        "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}},
    },
    dtypes=("plain", "biases, own head", "another width"),
    changes=(
        ("plain", {"rms_norm_eps": 1.1e-06}),
        ("plain", {"hidden_act": "relu"}),
        ("plain", {"rope_parameters": {"rope_type": "default", "rope_theta": 10100.0}}),
    ),
    refused=(
        ("plain", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("plain", {"hidden_activation": "silu"}, "hidden_activation"),
        ("biases, own head", {"hidden_activation": "gelu"}, "hidden_activation"),
        ("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),
    ),
)
