"""mistral4, tiny."""

from kinds import DEEP_YARN, DEEPSEEK, Kind

GROWS = DEEP_YARN | {"llama_4_scaling_beta": 0.7, "original_max_position_embeddings": 5}
KIND = Kind(
    tiny=DEEPSEEK | {"rope_parameters": GROWS, "first_k_dense_replace": 1},
    quirks={
        "plain": {},
        "all sparse, one group": {"first_k_dense_replace": 0, "n_group": 1, "topk_group": 1, "n_shared_experts": 2, "hidden_act": "gelu"},
        "no query latent, halves": {"q_lora_rank": None, "rope_interleave": False, "norm_topk_prob": False},
        "biases, tied": {"attention_bias": True, "tie_word_embeddings": True, "routed_scaling_factor": 2.5, "rms_norm_eps": 0.01},
    },
    changes=(
        ("plain", {"rope_parameters": GROWS | {"llama_4_scaling_beta": 0.701}}),
        ("plain", {"topk_group": 1}),
        ("plain", {"num_experts_per_tok": 3}),
    ),
    refused=(
        ("plain", {"rope_parameters": DEEP_YARN}, "llama_4_scaling_beta"),
        ("plain", {"n_group": 3}, "n_routed_experts % n_group == 0"),
        ("plain", {"rope_parameters": GROWS | {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ),
    task="ImageTextToText",
)
