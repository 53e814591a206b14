"""olmo_hybrid, tiny."""

from kinds import LLAMA, Kind

KINDS = ["linear_attention", "full_attention", "linear_attention"]
NO_TURN = {"rope_type": "default", "rope_theta": None}
# transformers writes the convolutions of queries, keys and values as three tensors of one size, which these widths have
DELTA = {"linear_num_key_heads": 2, "linear_key_head_dim": 12, "linear_num_value_heads": 4, "linear_value_head_dim": 6}

KIND = Kind(
    tiny=LLAMA | DELTA | {"num_hidden_layers": 3, "layer_types": KINDS, "pad_token_id": 0, "rope_parameters": NO_TURN},
    quirks={
        "plain": {},
        "by default, turned": {"layer_types": None, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "hidden_act": "gelu"},
        "by fours, tied": {"layer_types": None, "num_hidden_layers": 5, "tie_word_embeddings": True, "rms_norm_eps": 0.01},
        "beta up to 1, biases": {"linear_allow_neg_eigval": False, "attention_bias": True, "num_key_value_heads": 1},
        "widths of attention, short": {
            **dict.fromkeys(DELTA, None),
            "linear_value_head_dim": 6,
            "linear_conv_kernel_dim": 2,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0},
        },
    },
    sharp=8.0,
    dtypes=("plain", "by default, turned"),
    changes=(
        ("plain", {"linear_allow_neg_eigval": False}),
        ("plain", {"rms_norm_eps": 1.1e-6}),
        ("plain", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
    ),
    refused=(
        ("plain", {"layer_types": ["linear_attention"] * 2}, "layer_types"),
        ("plain", {"layer_types": ["linear_attention"] * 3}, "layer_types: linear_attention and full_attention"),
        ("plain", {"linear_num_key_heads": 3}, "linear_num_value_heads % linear_num_key_heads == 0"),
        ("plain", {"rope_parameters": {"rope_type": "linear", "rope_theta": None, "factor": 2.0}}, "rope_type"),
    ),
)
