"""qwen3_moe, tiny."""

from kinds import LLAMA, YARN, Kind

KIND = Kind(
    tiny=LLAMA | {"head_dim": 16, "moe_intermediate_size": 16, "num_experts": 6, "num_experts_per_tok": 3},
    quirks={
        "plain": {},
        "shares normalised": {"norm_topk_prob": True, "rms_norm_eps": 0.01},
        "every second layer": {"decoder_sparse_step": 2, "num_hidden_layers": 3},
        "some dense": {"mlp_only_layers": [1], "num_hidden_layers": 3, "hidden_act": "gelu"},
        "windows": {"use_sliding_window": True, "sliding_window": 5},
        "biases, tied": {"attention_bias": True, "tie_word_embeddings": True, "num_key_value_heads": 1},
        "yarn": {"rope_parameters": YARN, "head_dim": 24},
    },
    dtypes=("plain", "shares normalised", "yarn"),
    changes=(
        ("plain", {"norm_topk_prob": True}),
        ("plain", {"num_experts_per_tok": 2}),
        ("windows", {"sliding_window": 6}),
        ("windows", {"use_sliding_window": False}),
    ),
    refused=(
        ("plain", {"num_experts_per_tok": 7}, "num_experts_per_tok <= experts"),
        ("plain", {"mlp_only_layers": [-1]}, "mlp_only_layers"),
        ("windows", {"max_window_layers": 1}, "max_window_layers"),
        ("windows", {"sliding_window": None}, "sliding_window"),
        ("plain", {"n_routed_experts": 5}, "n_routed_experts == "),
    ),
)
