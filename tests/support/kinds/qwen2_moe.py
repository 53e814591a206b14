"""qwen2_moe, tiny."""

from kinds import LLAMA, Kind

KIND = Kind(
    tiny=LLAMA
    | {
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 20,
        "num_experts": 6,
        "num_experts_per_tok": 3,
    },
    quirks={
        "plain": {},
        "shares normalised": {"norm_topk_prob": True, "rms_norm_eps": 0.01},
        "every second layer": {"decoder_sparse_step": 2, "num_hidden_layers": 3},
        "some dense": {"mlp_only_layers": [0, 2], "num_hidden_layers": 4, "hidden_act": "gelu"},
        "windows by type": {"use_sliding_window": True, "sliding_window": 5, "layer_types": ["full_attention", "sliding_attention"]},
        "no biases, tied": {"qkv_bias": False, "tie_word_embeddings": True, "num_key_value_heads": 1},
    },
    dtypes=("plain", "shares normalised"),
    changes=(
        ("plain", {"norm_topk_prob": True}),
        ("plain", {"num_experts_per_tok": 2}),
        ("windows by type", {"sliding_window": 6}),
        ("windows by type", {"layer_types": ["sliding_attention", "full_attention"]}),
    ),
    refused=(
        ("plain", {"num_experts_per_tok": 7}, "num_experts_per_tok <= experts"),
        ("plain", {"mlp_only_layers": [2]}, "mlp_only_layers"),
        ("plain", {"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ("plain", {"shared_expert_intermediate_size": 0}, "shared_expert_intermediate_size"),
        ("windows by type", {"use_sliding_window": False}, "use_sliding_window"),
        ("windows by type", {"layer_types": None}, "layer_types"),
        ("plain", {"attention_bias": True}, "attention_bias"),
    ),
)
