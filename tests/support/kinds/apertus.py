"""apertus, tiny."""

from kinds import LLAMA, LLAMA3, Kind

DEFAULT = {"rope_type": "default", "rope_theta": 1e4}

KIND = Kind(
    tiny=LLAMA | {"rope_parameters": LLAMA3, "pad_token_id": 3},
    quirks={
        "plain": {},
        "not scaled": {"rope_parameters": DEFAULT, "rms_norm_eps": 0.01},
        "biases, tied": {"attention_bias": True, "tie_word_embeddings": True, "num_key_value_heads": 1},
        "linear": {"rope_parameters": DEFAULT | {"rope_type": "linear", "factor": 3.0}, "num_hidden_layers": 3},
    },
    changes=(("plain", {"rms_norm_eps": 1.1e-5}), ("plain", {"rope_parameters": DEFAULT})),
    refused=(
        ("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),
        ("plain", {"hidden_act": "silu"}, "hidden_act"),
        ("plain", {"rope_parameters": None}, "rope_parameters"),
    ),
)
