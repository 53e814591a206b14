"""minicpm3, tiny."""

from kinds import DEEP_YARN, DEEPSEEK, YARN, Kind

OF_EXPERTS = ("moe_", "n_", "topk", "first_k", "num_experts")
LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.1, 1.2, 1.5],
    "long_factor": [1.0, 1.9, 6.0, 20.0],
    "original_max_position_embeddings": 32,
}
KIND = Kind(
    tiny={k: v for k, v in DEEPSEEK.items() if not k.startswith(OF_EXPERTS)}
    | {"num_hidden_layers": 2, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 8},
    quirks={
        "plain": {},
        "no factors": {"scale_depth": None, "dim_model_base": None, "scale_emb": 1, "v_head_dim": None},
        "longrope": {"rope_parameters": LONG, "num_key_value_heads": 4},
        "no query latent, own head, biases": {
            "q_lora_rank": None,
            "tie_word_embeddings": False,
            "attention_bias": True,
            "mlp_bias": True,
            "hidden_act": "gelu",
        },
        "yarn, a wide epsilon": {"rope_parameters": YARN, "rms_norm_eps": 0.01},
        "yarn that scales the softmax": {"rope_parameters": DEEP_YARN},
    },
    dtypes=("plain", "longrope"),
    changes=(
        ("plain", {"scale_emb": 12.1}),
        ("plain", {"scale_depth": 1.41}),
        ("plain", {"dim_model_base": 9}),
    ),
    refused=(
        ("plain", {"kv_lora_rank": 0}, "kv_lora_rank"),
        ("plain", {"scale_depth": 0.0}, "scale_depth"),
        ("plain", {"qk_rope_head_dim": 7}, "rotary width % 2 == 0"),
    ),
)
