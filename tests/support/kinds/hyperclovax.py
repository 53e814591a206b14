"""hyperclovax, tiny."""

from kinds import LLAMA, Kind

KIND = Kind(
    tiny=LLAMA
    | {"embedding_multiplier": 10.0, "attention_multiplier": 0.25, "residual_multiplier": 0.7, "logits_scaling": 0.125, "head_dim": 8},
    quirks={
        "plain": {},
        "without multipliers": {
            "embedding_multiplier": 1.0,
            "attention_multiplier": None,
            "residual_multiplier": 1.0,
            "logits_scaling": 1.0,
            "rms_norm_eps": 0.01,
        },
        "no norms behind": {"use_post_norm": False, "num_key_value_heads": 1},
        "biases, tied": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "hidden_act": "gelu"},
    },
    changes=(
        ("plain", {"embedding_multiplier": 10.5}),
        ("plain", {"attention_multiplier": 0.26}),
        ("plain", {"residual_multiplier": 0.71}),
        ("plain", {"logits_scaling": 0.13}),
    ),
    refused=(
        ("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),
        ("plain", {"logits_scaling": 0.0}, "logits_scaling"),
    ),
    reads=("residual_multiplier",),
)
