"""glm_moe_dsa, tiny."""

from kinds import DEEP_YARN, DEEPSEEK, Kind

KIND = Kind(
    tiny=DEEPSEEK | {"index_topk": 6, "index_head_dim": 12, "index_n_heads": 8},
    quirks={
        "plain": {},
        "yarn": {"rope_parameters": DEEP_YARN, "index_topk": 9, "index_head_dim": 8, "index_n_heads": 24},
        "sees all": {"index_topk": 64, "attention_bias": True, "rms_norm_eps": 0.01},
        "kinds of layers": {"mlp_layer_types": ["sparse", "dense", "sparse"], "first_k_dense_replace": 0, "norm_topk_prob": False},
    },
    chooses=r".*indexer.*",
    changes=(("plain", {"index_topk": 7}), ("plain", {"routed_scaling_factor": 2.501}), ("yarn", {"index_topk": 64})),
    refused=(
        ("plain", {"indexer_types": ["full", "full", "shared"]}, "indexer_types"),
        ("plain", {"index_topk_freq": 4}, "index_topk_freq"),
        ("plain", {"index_head_dim": 6}, "index_head_dim >= qk_rope_head_dim"),
        ("plain", {"q_lora_rank": None}, "q_lora_rank > 0"),
    ),
)
