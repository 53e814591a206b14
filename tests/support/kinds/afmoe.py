"""afmoe, tiny."""

from kinds import LLAMA, YARN, Kind

KIND = Kind(
    tiny=LLAMA
    | {
        "num_hidden_layers": 4,
        "head_dim": 16,
        "sliding_window": 6,
        "moe_intermediate_size": 16,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_shared_experts": 1,
        "route_scale": 2.5,
    },
    quirks={
        "plain": {},
        "as Trinity Mini": {"mup_enabled": True, "num_dense_layers": 2, "num_experts_per_tok": 3, "rms_norm_eps": 0.01},
        "listed, all with experts, two shared": {
            "layer_types": ["full_attention", "sliding_attention"],
            "num_hidden_layers": 2,
            "num_dense_layers": 0,
            "num_shared_experts": 2,
            "hidden_act": "gelu",
        },
        "every second, yarn, tied": {
            "global_attn_every_n_layers": 2,
            "num_hidden_layers": 2,
            "rope_parameters": YARN,
            "tie_word_embeddings": True,
            "num_key_value_heads": 1,
        },
    },
    changes=(
        ("plain", {"sliding_window": 7}),
        ("plain", {"route_scale": 2.51}),
        ("plain", {"mup_enabled": True}),
        ("plain", {"layer_types": ["sliding_attention"] * 4}),
    ),
    refused=(
        ("plain", {"layer_types": ["full_attention"]}, "layer_types"),
        ("plain", {"num_experts_per_tok": 9}, "num_experts_per_tok <= num_experts"),
        ("plain", {"score_func": "softmax"}, "score_func"),
        ("plain", {"n_group": 2}, "n_group"),
        ("plain", {"attention_bias": True}, "attention_bias"),
    ),
)
