"""phi3, tiny."""

from kinds import LLAMA, LONGROPE, Kind

LONG = {"hidden_size": 64, "original_max_position_embeddings": 32, "rope_parameters": LONGROPE}

KIND = Kind(
    tiny=LLAMA | {"pad_token_id": 0},
    quirks={
        "plain": {},
        "window": {"sliding_window": 7, "num_key_value_heads": 4},
        "longrope": LONG,
        "longrope of a part, tied": LONG
        | {
            "hidden_size": 80,
            "tie_word_embeddings": True,
            "rope_parameters": LONGROPE | {"partial_rotary_factor": 0.8, "attention_factor": 1.3},
        },
        "part": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}, "hidden_act": "gelu"},
    },
    dtypes=("plain", "longrope", "longrope of a part, tied"),
    changes=(
        ("window", {"sliding_window": 8}),
        ("window", {"sliding_window": None}),
        ("part", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
        ("longrope", {"max_position_embeddings": 256}),
        ("longrope", {"rope_parameters": LONGROPE | {"long_factor": LONGROPE["short_factor"]}}),
    ),
    refused=(
        ("plain", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope_parameters.rope_type"),
        ("longrope", {"original_max_position_embeddings": 64}, "original_max_position_embeddings"),
        ("longrope of a part, tied", {"rope_parameters": LONGROPE | {"partial_rotary_factor": 0.9}}, "short_factor"),
        ("part", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.1}}, "partial_rotary_factor <= 1"),
    ),
)
