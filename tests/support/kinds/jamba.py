"""jamba, tiny."""

from kinds import LLAMA, Kind

MAMBA = {"mamba_d_state": 6, "mamba_dt_rank": 5, "attn_layer_period": 3, "attn_layer_offset": 1, "num_experts": 4, "num_experts_per_tok": 2}

KIND = Kind(
    tiny=LLAMA | MAMBA | {"num_hidden_layers": 4, "pad_token_id": 0},
    quirks={
        "plain": {},
        "no experts, biases, tied": {"num_experts": 1, "num_experts_per_tok": 1, "mamba_proj_bias": True, "tie_word_embeddings": True},
        "experts everywhere, attention last": {
            "expert_layer_period": 1,
            "expert_layer_offset": 0,
            "attn_layer_period": 4,
            "attn_layer_offset": 3,
            "num_key_value_heads": 1,
            "mamba_dt_rank": "auto",
        },
        "short, gelu": {"mamba_d_conv": 2, "mamba_conv_bias": False, "mamba_expand": 1, "hidden_act": "gelu", "rms_norm_eps": 0.01},
        "states alone": {"attn_layer_period": 9, "attn_layer_offset": 8, "num_experts_per_tok": 4},
    },
    dtypes=("plain", "no experts, biases, tied"),
    changes=(("plain", {"rms_norm_eps": 1.1e-6}), ("plain", {"num_experts_per_tok": 1})),
    refused=(
        ("plain", {"attn_layer_offset": 3}, "attn_layer_offset < attn_layer_period"),
        ("plain", {"expert_layer_offset": 2}, "expert_layer_offset < expert_layer_period"),
        ("plain", {"num_experts_per_tok": 5}, "num_experts_per_tok <= experts"),
        ("plain", {"mamba_inner_layernorms": False}, "mamba_inner_layernorms"),
        ("plain", {"num_attention_heads": 5}, "hidden_size % num_attention_heads == 0"),
    ),
)
