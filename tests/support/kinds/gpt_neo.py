"""gpt_neo, tiny."""

from kinds import Kind

KIND = Kind(
    tiny={
        "vocab_size": 97,
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "max_position_embeddings": 64,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 6,
        "bos_token_id": 96,
        "eos_token_id": 96,
    },
    quirks={
        "plain": {},
        "local first, narrow": {"attention_types": [[["local"], 2], [["global"], 1]], "num_layers": 3, "intermediate_size": 40},
        "own head, relu": {"tie_word_embeddings": False, "activation_function": "relu", "window_size": 9},
        "global alone": {"attention_types": [[["global"], 2]], "layer_norm_epsilon": 0.01},
    },
    dtypes=("plain",),
    changes=(("plain", {"window_size": 7}), ("plain", {"activation_function": "gelu"}), ("plain", {"layer_norm_epsilon": 1.1e-05})),
    refused=(
        ("plain", {"num_heads": 5}, "hidden_size % num_heads == 0"),
        ("plain", {"attention_types": [[["global"], 1]]}, "attention_types"),
        ("plain", {"attention_types": [[["sideways", "local"], 1]]}, "attention_types"),
        ("plain", {"attention_types": [["global", 2]]}, "attention_types"),
        ("plain", {"attention_layers": ["local", "global"]}, "attention_layers"),
    ),
    sharp=1.6,  # it divides no scores by the root of their width
    silent=r".*attn\.k\.bias",
)
