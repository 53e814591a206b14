"""nemotron_h, tiny."""

from kinds import Kind

LAYERS = ["mamba", "mlp", "mamba", "attention", "mlp"]

EXPERTS = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 16,
    "moe_shared_expert_intermediate_size": 20,
}

KIND = Kind(
    tiny={
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 48,
        "layers_block_type": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "ssm_state_size": 12,
        "n_groups": 2,
        "chunk_size": 4,
        "max_position_embeddings": 128,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    quirks={
        "plain": {},
        "parts alone, biases": {
            "layers_block_type": ["mamba", "attention", "mamba", "mamba", "mlp"],
            "use_bias": True,
            "mlp_bias": True,
            "time_step_min": 0.4,
            "layer_norm_epsilon": 0.01,
        },
        "one group, narrow": {"n_groups": 1, "mamba_head_dim": 4, "use_conv_bias": False, "conv_kernel": 2, "mlp_hidden_act": "gelu"},
        "experts": {"layers_block_type": ["mamba", "moe", "attention", "mlp", "mamba", "moe"], **EXPERTS},
        "experts in groups": {
            "layers_block_type": ["mamba", "moe", "attention", "moe"],
            **EXPERTS,
            "n_group": 4,
            "topk_group": 2,
            "norm_topk_prob": False,
            "routed_scaling_factor": 2.5,
            "mlp_hidden_act": "gelu",
        },
        "states alone": {"layers_block_type": ["mamba", "mlp"], "n_groups": 8, "mamba_hidden_act": "gelu", "residual_in_fp32": True},
    },
    sharp=8.0,
    dtypes=("plain", "one group, narrow"),
    changes=(("plain", {"layer_norm_epsilon": 1.1e-5}), ("plain", {"time_step_min": 0.4}), ("experts", {"routed_scaling_factor": 1.01})),
    refused=(
        ("plain", {"layers_block_type": ["moe", "mamba"]}, "layers_block_type"),
        ("experts", {"moe_latent_size": 8}, "moe_latent_size"),
        ("experts", {"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ("experts", {"mlp_bias": True}, "mlp_bias"),
        ("plain", {"layers_block_type": ["mlp", "mamba"]}, "layers_block_type"),
        ("plain", {"layers_block_type": ["mamba", "mlp", "mlp"]}, "layers_block_type"),
        ("plain", {"n_groups": 3}, "mamba_num_heads % n_groups == 0"),
        ("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),
    ),
)
