"""deepseek_v32, tiny."""

from kinds import DEEP_YARN, DEEPSEEK, Kind

KIND = Kind(
    tiny=DEEPSEEK | {"index_topk": 6, "index_head_dim": 12, "index_n_heads": 8},
    quirks={
        "plain": {},
        "yarn": {"rope_parameters": DEEP_YARN, "index_topk": 9, "index_head_dim": 8, "index_n_heads": 24},
        "sees all": {"index_topk": 64, "attention_bias": True, "rms_norm_eps": 0.01},
        "two keys": {"index_topk": 2, "index_n_heads": 16, "tie_word_embeddings": True},
        "kinds of layers": {"mlp_layer_types": ["sparse", "dense", "sparse"], "first_k_dense_replace": 0, "norm_topk_prob": False},
    },
    dtypes=("plain", "yarn"),
    changes=(
        ("plain", {"index_topk": 7}),
        ("plain", {"routed_scaling_factor": 2.501}),
        ("yarn", {"rope_parameters": DEEP_YARN | {"mscale": 1.01, "mscale_all_dim": 1.01}}),
        ("yarn", {"index_topk": 64}),
    ),
    chooses=r".*\.indexer\..*",
    refused=(
        ("plain", {"q_lora_rank": None}, "q_lora_rank"),
        ("plain", {"index_head_dim": 6}, "index_head_dim >= qk_rope_head_dim"),
        ("plain", {"index_topk": 0}, "index_topk"),
        ("plain", {"layer_types": ["full_attention"] * 3}, "layer_types"),
        ("plain", {"mlp_layer_types": ["dense", "sparse", "moe"]}, "mlp_layer_types"),
        ("plain", {"rope_interleave": False}, "rope_interleave"),
        ("plain", {"scoring_func": "softmax"}, "scoring_func"),
    ),
)
