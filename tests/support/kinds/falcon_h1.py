"""falcon_h1, tiny."""

from kinds import LLAMA, Kind

MAMBA = {"mamba_d_ssm": 48, "mamba_n_heads": 8, "mamba_d_state": 12, "mamba_n_groups": 2, "mamba_chunk_size": 4}
MULTIPLIERS = {
    "attention_in_multiplier": 1.25,
    "attention_out_multiplier": 0.9375,
    "embedding_multiplier": 5.5,
    "key_multiplier": 0.75,
    "lm_head_multiplier": 0.5,
    "mlp_multipliers": [0.875, 0.625],
    "ssm_in_multiplier": 1.5,
    "ssm_multipliers": [0.75, 1.25, 0.625, 1.125, 0.875],
    "ssm_out_multiplier": 0.375,
}

KIND = Kind(
    tiny=LLAMA | MAMBA | MULTIPLIERS,
    quirks={
        "plain": {},
        "without multipliers, tied, normed": {
            **dict.fromkeys(MULTIPLIERS, 1.0),
            "mlp_multipliers": None,
            "ssm_multipliers": None,
            "tie_word_embeddings": True,
            "mamba_rms_norm": True,
            "mamba_n_groups": 1,
            "rms_norm_eps": 0.01,
        },
        "norm after the gate, biases": {
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
            "mamba_proj_bias": True,
            "projectors_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "time_step_limit": [0.4, 1.5],
        },
        "short, shared keys": {
            "mamba_n_groups": 8,
            "mamba_d_conv": 2,
            "mamba_conv_bias": False,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "hidden_act": "gelu",
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e11},
        },
    },
    sharp=8.0,
    dtypes=("plain", "norm after the gate, biases"),
    changes=(
        ("plain", {"rms_norm_eps": 1.1e-5}),
        ("plain", {"key_multiplier": 0.76}),
        ("plain", {"attention_in_multiplier": 1.26}),
        ("plain", {"ssm_multipliers": [0.75, 1.25, 0.625, 1.125, 0.88]}),
        ("plain", {"mlp_multipliers": [0.88, 0.625]}),
        ("plain", {"lm_head_multiplier": 0.51}),
        ("norm after the gate, biases", {"mamba_norm_before_gate": True}),
    ),
    refused=(
        ("plain", {"mamba_n_heads": 7}, "mamba_d_ssm % mamba_n_heads == 0"),
        ("plain", {"mamba_n_groups": 3}, "mamba_n_heads % mamba_n_groups == 0"),
        ("plain", {"mamba_d_head": 4}, "mamba_d_head * mamba_n_heads"),
        ("plain", {"ssm_multipliers": [1.0, 1.0]}, "ssm_multipliers"),
        ("plain", {"projectors_bias": True}, "projectors_bias == mamba_proj_bias"),
        ("plain", {"mamba_use_mlp": False}, "mamba_use_mlp"),
    ),
)
