"""granitemoe_swa, tiny."""

from kinds import LLAMA, LLAMA3, Kind

KIND = Kind(
    tiny=LLAMA
    | {
        "num_hidden_layers": 3,
        "embedding_multiplier": 12.0,
        "attention_multiplier": 0.25,
        "residual_multiplier": 0.22,
        "logits_scaling": 8.0,
        "intermediate_size": 16,
        "num_local_experts": 4,
        "sliding_window": 6,
    },
    quirks={
        "plain": {},
        "own bases, one without, a shared network": {"layer_rope_theta": [0, 5e5, 100.0], "shared_intermediate_size": 20},
        "biases, tied, all slide": {
            "layer_types": ["sliding_attention"] * 2,
            "num_hidden_layers": 2,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "num_experts_per_tok": 3,
        },
        "llama3, all full": {
            "layer_types": ["full_attention"] * 2,
            "num_hidden_layers": 2,
            "rope_parameters": LLAMA3,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "rms_norm_eps": 0.01,
            "hidden_act": "gelu",
        },
    },
    changes=(
        ("plain", {"sliding_window": 7}),
        ("plain", {"num_experts_per_tok": 3}),
        ("plain", {"layer_rope_theta": [0, 1e4, 1e4]}),
    ),
    refused=(
        ("plain", {"num_experts_per_tok": 5}, "num_experts_per_tok <= experts"),
        ("plain", {"layer_rope_theta": [1.0, 1e4, 1e4]}, "layer_rope_theta"),
        ("plain", {"layer_types": ["full_attention"]}, "layer_types"),
        ("plain", {"shared_intermediate_size": -1}, "shared_intermediate_size"),
    ),
    reads=("residual_multiplier",),
)
