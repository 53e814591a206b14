"""youtu, tiny."""

from kinds import DEEP_YARN, DEEPSEEK, Kind

OF_EXPERTS = ("moe_", "n_", "topk", "first_k", "num_experts")
KIND = Kind(
    tiny={k: v for k, v in DEEPSEEK.items() if not k.startswith(OF_EXPERTS)} | {"num_hidden_layers": 2},
    quirks={
        "plain": {},
        "own head, biases": {"tie_word_embeddings": False, "attention_bias": True},
        "no query latent, halves": {"q_lora_rank": None, "rope_interleave": False, "hidden_act": "gelu"},
        "yarn": {"rope_parameters": DEEP_YARN, "rms_norm_eps": 0.01},
    },
    dtypes=("plain", "yarn"),
    changes=(("plain", {"rope_interleave": False}), ("yarn", {"rope_parameters": DEEP_YARN | {"mscale_all_dim": 1.01}})),
    refused=(
        ("plain", {"kv_lora_rank": 0}, "kv_lora_rank"),
        ("plain", {"qk_rope_head_dim": 7}, "rotary width % 2 == 0"),
    ),
)
