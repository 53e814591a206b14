"""glm, tiny."""

from kinds import LLAMA, Kind

KIND = Kind(
    tiny=LLAMA | {"head_dim": 16, "pad_token_id": 0},
    quirks={
        "plain": {},
        "no biases, tied": {"attention_bias": False, "tie_word_embeddings": True, "num_key_value_heads": 1},
        "whole head": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}, "hidden_act": "gelu"},
        "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0, "partial_rotary_factor": 0.75}},
    },
    dtypes=("plain", "linear"),
    changes=(
        ("plain", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}}),
        ("plain", {"rms_norm_eps": 1e-6}),
        ("linear", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}}),
    ),
    refused=(
        ("plain", {"partial_rotary_factor": 0.01, "rope_parameters": None}, "rotary width % 2 == 0"),
        ("plain", {"partial_rotary_factor": 1.5, "rope_parameters": None}, "partial_rotary_factor <= 1"),
    ),
)
