"""exaone4, tiny."""

from kinds import LLAMA, LLAMA3, Kind

KIND = Kind(
    tiny=LLAMA | {"num_hidden_layers": 4, "sliding_window": 6},
    quirks={
        "plain": {},
        "listed": {"layer_types": ["full_attention", "sliding_attention"], "num_hidden_layers": 2},
        "no windows, llama3": {
            "sliding_window": None,
            "layer_types": ["full_attention"] * 2,
            "num_hidden_layers": 2,
            "rope_parameters": LLAMA3,
            "tie_word_embeddings": True,
            "head_dim": 16,
        },
        "every second": {"sliding_window_pattern": 2, "rms_norm_eps": 0.01, "hidden_act": "gelu"},
    },
    dtypes=("plain", "no windows, llama3"),
    changes=(
        ("plain", {"sliding_window": 7}),
        ("plain", {"layer_types": ["sliding_attention", "full_attention"] * 2}),
        ("no windows, llama3", {"sliding_window": 6}),
    ),
    refused=(
        ("plain", {"layer_types": ["full_attention"] * 3}, "layer_types"),
        ("plain", {"sliding_window": None, "layer_types": ["sliding_attention"] * 4}, "sliding_window"),
        ("plain", {"sliding_window_pattern": "LLLG", "layer_types": None}, "sliding_window_pattern"),
    ),
)
