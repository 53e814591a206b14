"""granitemoehybrid, tiny."""

from kinds import Kind
from kinds.granitemoe import KIND as GRANITEMOE

KINDS = ["mamba", "attention", "mamba"]
MAMBA = {"mamba_n_heads": 8, "mamba_d_state": 12, "mamba_n_groups": 2, "mamba_chunk_size": 4, "layer_types": KINDS, "num_hidden_layers": 3}

KIND = Kind(
    tiny=GRANITEMOE.tiny | MAMBA | {"num_local_experts": 4, "shared_intermediate_size": 40, "position_embedding_type": "nope"},
    quirks={
        "plain": {},
        "dense, one group, tied": {
            "num_local_experts": 0,
            "mamba_n_groups": 1,
            "mamba_expand": 1,
            "mamba_d_head": 4,
            "tie_word_embeddings": True,
            "rms_norm_eps": 0.01,
        },
        "rope, limits, short": {
            "position_embedding_type": "rope",
            "time_step_limit": [0.4, 1.5],
            "mamba_d_conv": 2,
            "mamba_conv_bias": False,
            "hidden_act": "gelu",
        },
        "states alone, biases": {
            "layer_types": ["mamba"] * 3,
            "mamba_proj_bias": True,
            "mamba_n_groups": 8,
            "num_experts_per_tok": 4,
            "time_step_limit": [0.6, float("inf")],
        },
    },
    sharp=8.0,
    dtypes=("plain", "dense, one group, tied"),
    changes=(
        ("plain", {"rms_norm_eps": 1.1e-6}),
        ("plain", {"time_step_limit": [0.5, 1.5]}),
        ("rope, limits, short", {"position_embedding_type": "nope"}),
        ("rope, limits, short", {"time_step_limit": [0.4, 1.4]}),
    ),
    refused=(
        ("plain", {"layer_types": ["mamba"] * 2}, "layer_types"),
        ("plain", {"mamba_n_heads": 7}, "mamba_expand * hidden_size % mamba_n_heads == 0"),
        ("plain", {"mamba_n_groups": 3}, "mamba_n_heads % mamba_n_groups == 0"),
        ("plain", {"mamba_d_head": 4}, "mamba_d_head * mamba_n_heads"),
        ("plain", {"time_step_limit": [0.5, 0.4]}, "time_step_limit"),
        ("plain", {"normalization_function": "layernorm"}, "normalization_function"),
    ),
    reads=("residual_multiplier",),
)
