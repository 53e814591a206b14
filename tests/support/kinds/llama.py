"""llama, tiny."""

from kinds import LLAMA, LLAMA3, LONGROPE, YARN, Kind

KIND = Kind(
    tiny=LLAMA | {"rope_theta": 500000.0},
    quirks={
        "plain": {},
        "biases": {"attention_bias": True, "mlp_bias": True},
        "tied, one kv head": {"tie_word_embeddings": True, "num_key_value_heads": 1, "hidden_act": "gelu_pytorch_tanh"},
        "own head width": {"head_dim": 12, "num_key_value_heads": 4, "rms_norm_eps": 0.01},
        "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}},
        "llama3": {"head_dim": 16, "rope_parameters": LLAMA3},
        "yarn": {"head_dim": 16, "rope_parameters": YARN},
        "yarn without truncation": {
            "head_dim": 16,
            "rope_parameters": YARN | {"truncate": False, "beta_fast": 8.0, "attention_factor": 1.3},
        },
        "dynamic": {
            "head_dim": 16,
            "max_position_embeddings": 32,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 3.0},
        },
        "longrope": {"head_dim": 16, "rope_parameters": LONGROPE},
    },
    dtypes=("plain", "biases", "yarn", "yarn without truncation", "dynamic", "longrope"),
    changes=(
        ("plain", {"rope_parameters": {"rope_type": "default", "rope_theta": 500100.0}}),
        ("plain", {"rms_norm_eps": 1.1e-06}),
        ("plain", {"hidden_act": "gelu"}),
        ("linear", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.001}}),
        ("llama3", {"rope_parameters": LLAMA3 | {"high_freq_factor": 4.01}}),
        ("yarn without truncation", {"rope_parameters": YARN | {"beta_fast": 8.0, "attention_factor": 1.3}}),
        ("dynamic", {"max_position_embeddings": 33}),
        ("dynamic", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 3.001}}),
        ("longrope", {"rope_parameters": LONGROPE | {"original_max_position_embeddings": 37}}),
        ("longrope", {"rope_parameters": LONGROPE | {"long_factor": [*LONGROPE["long_factor"][:-1], 25.0]}}),
        ("longrope", {"rope_parameters": LONGROPE | {"factor": 5.0}}),
    ),
    refused=(
        ("plain", {"num_attention_heads": 5, "head_dim": None}, "hidden_size % num_attention_heads == 0"),
        ("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),
        ("plain", {"head_dim": 7}, "rotary width % 2 == 0"),
        ("plain", {"num_hidden_layers": 0}, "num_hidden_layers"),
        ("plain", {"num_hidden_layers": 1000000000}, "num_hidden_layers"),
        ("plain", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "not (rope_parameters and rope_scaling)"),
        ("plain", {"rope_parameters": {"rope_type": "proportional", "factor": 2.0}}, "default, linear, llama3, yarn, dynamic, longrope"),
        ("plain", {"rope_parameters": {"rope_type": "linear", "factor": 0}}, "rope_parameters.factor"),
        ("plain", {"rope_parameters": {"rope_type": "linear", "type": "yarn", "factor": 2.0}}, "type == rope_type"),
        ("plain", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ("plain", {"rope_parameters": {"rope_type": "default", "rope_theta": 1.0}}, "rope_theta"),
        ("dynamic", {"head_dim": 2}, "rotary width > 2"),
        ("longrope", {"head_dim": 12}, "short_factor"),
        ("longrope", {"rope_parameters": LONGROPE | {"long_factor": [1.0] * 7}}, "long_factor"),
        ("longrope", {"rope_parameters": LONGROPE | {"long_factor": [1.0] * 7 + [0.0]}}, "long_factor"),
        ("longrope", {"original_max_position_embeddings": 33}, "original_max_position_embeddings"),
        (
            "llama3",
            {"rope_parameters": LLAMA3 | {"low_freq_factor": 4.0, "high_freq_factor": 3.5}},
            "low_freq_factor",
        ),
        (
            "yarn",
            {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 10000.0,
                    "factor": 4.0,
                    "original_max_position_embeddings": 32,
                    "beta_fast": 0.5,
                }
            },
            "beta_fast >= beta_slow",
        ),
    ),
)
