"""mamba2, tiny."""

from kinds import Kind

KIND = Kind(
    tiny={
        "vocab_size": 97,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_heads": 8,
        "head_dim": 8,
        "state_size": 12,
        "n_groups": 2,
        "chunk_size": 4,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "residual_in_fp32": False,
    },
    quirks={
        "plain": {},
        "one group, biases, tied": {"n_groups": 1, "use_bias": True, "tie_word_embeddings": True, "expand": 1, "head_dim": 4},
        "limits, short": {"time_step_limit": [0.05, 0.2], "conv_kernel": 2, "use_conv_bias": False, "layer_norm_epsilon": 0.01},
        "a group a head": {"n_groups": 8, "time_step_limit": [0.6, float("inf")], "hidden_act": "gelu", "residual_in_fp32": True},
    },
    dtypes=("plain", "one group, biases, tied"),
    changes=(("plain", {"layer_norm_epsilon": 1.1e-5}), ("limits, short", {"time_step_limit": [0.05, 0.15]})),
    refused=(
        ("plain", {"head_dim": 4}, "num_heads * head_dim == expand * hidden_size"),
        ("plain", {"n_groups": 3}, "num_heads % n_groups == 0"),
        ("plain", {"time_step_limit": [0.5, 0.4]}, "time_step_limit"),
    ),
)
