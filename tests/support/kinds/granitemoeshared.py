"""granitemoeshared, tiny."""

from kinds import LLAMA, Kind

KIND = Kind(
    tiny=LLAMA
    | {
        "embedding_multiplier": 12.0,
        "attention_multiplier": 0.25,
        "residual_multiplier": 0.22,
        "logits_scaling": 8.0,
        "num_local_experts": 4,
        "shared_intermediate_size": 20,
    },
    quirks={
        "plain": {},
        "no shared network": {"shared_intermediate_size": 0},
        "biases, tied": {"attention_bias": True, "tie_word_embeddings": True, "num_experts_per_tok": 3},
        "one group, a wide epsilon": {"num_key_value_heads": 1, "rms_norm_eps": 0.02, "hidden_act": "gelu"},
    },
    changes=(
        ("plain", {"embedding_multiplier": 12.5}),
        ("plain", {"residual_multiplier": 0.23}),
        ("plain", {"num_experts_per_tok": 3}),
    ),
    refused=(
        ("plain", {"num_experts_per_tok": 5}, "num_experts_per_tok <= experts"),
        ("plain", {"shared_intermediate_size": -1}, "shared_intermediate_size"),
    ),
    reads=("residual_multiplier",),
)
