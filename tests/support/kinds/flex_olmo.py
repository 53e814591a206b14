"""flex_olmo, tiny."""

from kinds import LLAMA, YARN, Kind

KIND = Kind(
    tiny=LLAMA | {"num_experts": 4, "num_experts_per_tok": 2, "pad_token_id": 0},
    quirks={
        "plain": {},
        "shares normalised": {"norm_topk_prob": True, "rms_norm_eps": 0.01},
        "biases, one group": {"attention_bias": True, "num_key_value_heads": 1, "hidden_act": "gelu"},
        "yarn, tied": {"rope_parameters": YARN, "tie_word_embeddings": True, "num_experts_per_tok": 3},
    },
    changes=(("plain", {"norm_topk_prob": True}), ("plain", {"num_experts_per_tok": 3}), ("plain", {"rms_norm_eps": 1.1e-6})),
    refused=(("plain", {"num_experts_per_tok": 5}, "num_experts_per_tok <= experts"), ("plain", {"num_experts": 0}, "num_experts")),
)
