"""gpt_neox, tiny."""

from kinds import LLAMA, Kind

KIND = Kind(
    tiny={k: v for k, v in LLAMA.items() if k != "num_key_value_heads"} | {"hidden_size": 64},
    quirks={
        "plain": {},
        "one after the other": {"use_parallel_residual": False, "layer_norm_eps": 0.01, "hidden_act": "relu"},
        "whole heads turn, tied": {
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 25_000.0, "partial_rotary_factor": 1.0},
        },
        "no biases, linear": {
            "attention_bias": False,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0, "partial_rotary_factor": 0.5},
        },
    },
    dtypes=("plain",),
    changes=(
        ("plain", {"use_parallel_residual": False}),
        ("plain", {"hidden_act": "gelu_new"}),
        ("plain", {"rope_parameters": {"rope_type": "default", "rope_theta": 10100.0, "partial_rotary_factor": 0.25}}),
        ("plain", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
    ),
    refused=(
        ("plain", {"num_attention_heads": 5}, "hidden_size % num_attention_heads == 0"),
        ("plain", {"rope_theta": 20_000}, "rope_theta"),
        (
            "plain",
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.5}},
            "partial_rotary_factor <= 1",
        ),
    ),
)
