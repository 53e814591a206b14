"""flint, tiny."""

from kinds import LLAMA, YARN, Kind

KIND = Kind(
    tiny=LLAMA
    | {
        "num_hidden_layers": 4,
        "head_dim": 16,
        "sliding_window": 6,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 24,
        "num_experts": 6,
        "num_experts_per_tok": 2,
    },
    quirks={
        "plain": {},
        "listed, shares as they are, biases": {
            "layer_types": ["sliding_attention", "full_attention"],
            "num_hidden_layers": 2,
            "mlp_only_layers": [],
            "norm_topk_prob": False,
            "attention_bias": True,
        },
        "every second with experts, gelu": {"decoder_sparse_step": 2, "mlp_only_layers": [3], "hidden_act": "gelu", "rms_norm_eps": 0.01},
        "windows alone, yarn, tied": {
            "layer_types": ["sliding_attention"] * 2,
            "num_hidden_layers": 2,
            "mlp_only_layers": [0],
            "rope_parameters": YARN,
            "tie_word_embeddings": True,
            "num_key_value_heads": 1,
        },
    },
    changes=(
        ("plain", {"sliding_window": 7}),
        ("plain", {"norm_topk_prob": False}),
        ("plain", {"layer_types": ["full_attention"] * 4}),
    ),
    refused=(
        ("plain", {"num_experts_per_tok": 7}, "num_experts_per_tok <= experts"),
        ("plain", {"layer_types": ["full_attention"]}, "layer_types"),
        ("plain", {"mlp_only_layers": [4]}, "mlp_only_layers"),
    ),
)
