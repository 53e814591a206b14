"""granite, tiny."""

from kinds import LLAMA, Kind

KIND = Kind(
    tiny=LLAMA
    | {"embedding_multiplier": 12.0, "attention_multiplier": 0.25, "residual_multiplier": 0.22, "logits_scaling": 8.0, "head_dim": 8},
    quirks={
        "plain": {},
        "without multipliers": {
            "embedding_multiplier": 1.0,
            "attention_multiplier": 1.0,
            "residual_multiplier": 1.0,
            "logits_scaling": 1.0,
            "rms_norm_eps": 0.01,
        },
        "biases, tied": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "logits_scaling": 6.0},
        "one group, a wide epsilon": {"num_key_value_heads": 1, "rms_norm_eps": 0.02},
    },
    changes=(
        ("plain", {"embedding_multiplier": 12.5}),
        ("plain", {"attention_multiplier": 0.26}),
        ("plain", {"residual_multiplier": 0.23}),
        ("plain", {"logits_scaling": 8.5}),
    ),
    refused=(
        ("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),
        ("plain", {"logits_scaling": 0.0}, "logits_scaling"),
    ),
    reads=("residual_multiplier",),
)
