"""mellum, tiny."""

from kinds import LLAMA, YARN, Kind

KIND = Kind(
    tiny=LLAMA
    | {
        "head_dim": 16,
        "moe_intermediate_size": 16,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "sliding_window": 6,
        "layer_types": ["full_attention", "sliding_attention"],
    },
    quirks={
        "plain": {},
        "all full, one dense": {"layer_types": None, "mlp_layer_types": ["dense", "sparse"], "hidden_act": "gelu"},
        "shares as they are, biases": {"norm_topk_prob": False, "attention_bias": True, "rms_norm_eps": 0.01},
        "two turns, tied": {
            "rope_parameters": {"full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}},
            "tie_word_embeddings": True,
            "num_key_value_heads": 1,
        },
    },
    changes=(
        ("plain", {"sliding_window": 7}),
        ("plain", {"norm_topk_prob": False}),
        ("plain", {"layer_types": ["sliding_attention", "full_attention"]}),
    ),
    refused=(
        ("plain", {"num_experts_per_tok": 7}, "num_experts_per_tok <= experts"),
        ("plain", {"mlp_layer_types": ["dense"]}, "mlp_layer_types"),
        ("plain", {"layer_types": ["full_attention"]}, "layer_types"),
    ),
)
