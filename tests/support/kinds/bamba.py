"""bamba, tiny."""

from kinds import LLAMA, Kind

MAMBA = {"mamba_n_heads": 8, "mamba_d_state": 12, "mamba_n_groups": 2, "mamba_chunk_size": 4}

KIND = Kind(
    tiny=LLAMA | MAMBA | {"num_hidden_layers": 3, "attn_layer_indices": [1]},
    quirks={
        "plain": {},
        "one group, another base, tied": {
            "attn_layer_indices": [0, 2],
            "mamba_n_groups": 1,
            "mamba_expand": 1,
            "mamba_d_head": 4,
            "rms_norm_eps": 0.01,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
        },
        "limits, short, biases": {
            "time_step_limit": [0.4, 1.5],
            "mamba_d_conv": 2,
            "mamba_conv_bias": False,
            "attention_bias": True,
            "mlp_bias": True,
            "hidden_act": "gelu",
        },
        "states alone, biases of states": {"attn_layer_indices": None, "mamba_proj_bias": True, "mamba_n_groups": 8},
    },
    sharp=8.0,
    dtypes=("plain", "one group, another base, tied"),
    changes=(
        ("plain", {"rms_norm_eps": 1.1e-5}),
        ("plain", {"time_step_limit": [0.5, 1.5]}),
        ("plain", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}}),
        ("limits, short, biases", {"time_step_limit": [0.4, 1.4]}),
    ),
    refused=(
        ("plain", {"attn_layer_indices": [3]}, "attn_layer_indices"),
        ("plain", {"attn_rotary_emb": 8}, "attn_rotary_emb"),
        ("plain", {"partial_rotary_factor": 1.0}, "partial_rotary_factor"),
        ("plain", {"mamba_n_heads": 7}, "mamba_expand * hidden_size % mamba_n_heads == 0"),
        ("plain", {"mamba_n_groups": 3}, "mamba_n_heads % mamba_n_groups == 0"),
        ("plain", {"mamba_d_head": 4}, "mamba_d_head * mamba_n_heads"),
    ),
)
