"""olmoe, tiny."""

from kinds import LLAMA, Kind

KIND = Kind(
    tiny=LLAMA | {"pad_token_id": 0, "intermediate_size": 16, "num_experts": 6, "num_experts_per_tok": 3},
    quirks={
        "plain": {},
        "shares normalised, biases": {"norm_topk_prob": True, "attention_bias": True, "rms_norm_eps": 0.01},
        "one group, tied, gelu": {"num_key_value_heads": 1, "tie_word_embeddings": True, "hidden_act": "gelu"},
        "one group, a wide epsilon": {"num_key_value_heads": 1, "rms_norm_eps": 0.02},
    },
    dtypes=("plain",),
    changes=(("plain", {"norm_topk_prob": True}), ("plain", {"num_experts_per_tok": 2})),
    refused=(
        ("plain", {"num_experts_per_tok": 7}, "num_experts_per_tok <= experts"),
        ("plain", {"clip_qkv": 8.0}, "clip_qkv"),
        ("plain", {"head_dim": 12}, "head_dim == hidden_size / num_attention_heads"),
    ),
)
