"""mamba, tiny."""

from kinds import Kind

KIND = Kind(
    tiny={
        "vocab_size": 97,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "state_size": 6,
        "time_step_rank": 5,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "residual_in_fp32": False,
    },
    quirks={
        "plain": {},
        "biases, an own head": {"use_bias": True, "tie_word_embeddings": False, "expand": 1, "state_size": 16},
        "short, rank of itself": {"conv_kernel": 2, "use_conv_bias": False, "layer_norm_epsilon": 0.01, "time_step_rank": "auto"},
        "gelu, another width": {"hidden_act": "gelu", "intermediate_size": 40, "residual_in_fp32": True, "state_size": 1},
    },
    dtypes=("plain", "biases, an own head"),
    changes=(("plain", {"layer_norm_epsilon": 1.1e-5}), ("plain", {"hidden_act": "gelu"})),
    refused=(
        ("plain", {"d_inner": 32}, "d_inner"),
        ("plain", {"time_step_rank": 0}, "time_step_rank"),
        ("plain", {"rms_norm": False}, "rms_norm"),
    ),
)
