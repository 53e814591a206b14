"""glm4_moe_lite, tiny."""

from kinds import DEEP_YARN, DEEPSEEK, Kind

TINY = {name: value for name, value in DEEPSEEK.items() if name != "first_k_dense_replace"}

KIND = Kind(
    tiny=TINY,
    quirks={
        "plain": {},
        "listed": {"mlp_layer_types": ["sparse", "dense", "sparse"], "norm_topk_prob": False, "hidden_act": "gelu"},
        "no rank of queries, biases": {"q_lora_rank": None, "attention_bias": True, "rms_norm_eps": 0.01},
        "halves, yarn": {"rope_interleave": False, "rope_parameters": DEEP_YARN, "n_shared_experts": 2, "tie_word_embeddings": True},
    },
    changes=(
        ("plain", {"routed_scaling_factor": 1.81}),
        ("plain", {"num_experts_per_tok": 3}),
        ("plain", {"rope_interleave": False}),
    ),
    refused=(
        ("plain", {"mlp_layer_types": ["dense"]}, "mlp_layer_types"),
        ("plain", {"n_group": 3}, "n_routed_experts % n_group == 0"),
        ("plain", {"num_experts_per_tok": 9}, "num_experts_per_tok"),
    ),
)
