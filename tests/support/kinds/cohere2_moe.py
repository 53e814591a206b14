"""cohere2_moe, tiny."""

from kinds import LLAMA, Kind

KIND = Kind(
    tiny=LLAMA | {"pad_token_id": 0, "num_hidden_layers": 4, "sliding_window": 6, "head_dim": 8, "num_experts": 6},
    quirks={
        "plain": {"first_k_dense_replace": 1, "num_shared_experts": 2},
        "sigmoid, summed, rms": {
            "expert_selection_fn": "sigmoid",
            "num_shared_experts": 1,
            "shared_expert_combination_strategy": "sum",
            "rms_norm_eps": 0.01,
            "attention_bias": True,
        },
        "not normalised, no shared expert": {"expert_selection_fn": "sigmoid", "norm_topk_prob": False, "num_experts_per_tok": 3},
        "listed, own head": {
            "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"],
            "mlp_layer_types": ["dense", "sparse", "dense", "sparse"],
            "prefix_dense_intermediate_size": 40,
            "prefix_dense_sliding_window_pattern": 2,
            "tie_word_embeddings": False,
            "logit_scale": 0.3,
        },
    },
    dtypes=("plain", "sigmoid, summed, rms"),
    changes=(
        ("plain", {"sliding_window": 7}),
        ("plain", {"logit_scale": 0.07}),
        ("plain", {"shared_expert_combination_strategy": "sum"}),
        ("sigmoid, summed, rms", {"norm_topk_prob": False}),
        ("listed, own head", {"prefix_dense_sliding_window_pattern": 1}),
    ),
    refused=(
        ("plain", {"num_key_value_heads": 3}, "num_attention_heads % num_key_value_heads == 0"),
        ("plain", {"num_experts_per_tok": 7}, "num_experts_per_tok <= num_experts"),
        ("plain", {"expert_selection_fn": "relu"}, "expert_selection_fn"),
        ("plain", {"sliding_window": None}, "sliding_window"),
    ),
)
