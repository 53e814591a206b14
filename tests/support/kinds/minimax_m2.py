"""minimax_m2, tiny."""

from kinds import LLAMA, YARN, Kind

KIND = Kind(
    tiny=LLAMA | {"head_dim": 16, "intermediate_size": 16, "num_local_experts": 6, "num_experts_per_tok": 3, "rotary_dim": 8},
    quirks={
        "plain": {},
        "all of a head turns": {"rotary_dim": 16, "rms_norm_eps": 0.01, "hidden_act": "gelu"},
        "yarn, tied": {
            "rope_parameters": YARN | {"partial_rotary_factor": 0.5},
            "rotary_dim": 12,
            "head_dim": 24,
            "tie_word_embeddings": True,
        },
        "one group, a wide epsilon": {"num_key_value_heads": 1, "rms_norm_eps": 0.02},
    },
    dtypes=("plain",),
    changes=(("plain", {"num_experts_per_tok": 2}), ("plain", {"rms_norm_eps": 1.1e-05})),
    refused=(
        ("plain", {"num_experts_per_tok": 7}, "num_experts_per_tok <= experts"),
        ("plain", {"scoring_func": "softmax"}, "scoring_func"),
        ("plain", {"attn_type_list": [0, 1]}, "attn_type_list"),
        ("plain", {"shared_intermediate_size": 8}, "shared_intermediate_size"),
    ),
)
