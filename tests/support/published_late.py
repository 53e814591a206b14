"""config.json of Llama 4, of which the text model's part alone, as published, and our exact parameter counts."""

from typing import Any

SCOUT: dict[str, Any] = {
    "attention_bias": False, "attention_chunk_size": 8192, "attention_dropout": 0.0, "attn_scale": 0.1, "attn_temperature_tuning": True,
    "bos_token_id": 200000, "cache_implementation": "hybrid", "eos_token_id": [200001, 200007, 200008], "floor_scale": 8192,
    "for_llm_compressor": False, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02,
    "interleave_moe_layer_step": 1, "intermediate_size": 8192, "intermediate_size_mlp": 16384, "max_position_embeddings": 10485760,
    "model_type": "llama4_text", "no_rope_layers": [], "num_attention_heads": 40, "num_experts_per_tok": 1, "num_hidden_layers": 48,
    "num_key_value_heads": 8, "num_local_experts": 16, "output_router_logits": False, "pad_token_id": 200018, "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3",
    },
    "rope_theta": 500000.0, "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0, "torch_dtype": "bfloat16", "use_cache": True,
    "use_qk_norm": True, "vocab_size": 202048,
}  # fmt: skip
MAVERICK: dict[str, Any] = SCOUT | {
    "interleave_moe_layer_step": 2, "max_position_embeddings": 1048576, "num_local_experts": 128, "rope_scaling": None,
    "use_qk_norm": False,
}  # fmt: skip

LATE: dict[str, tuple[dict[str, Any], int]] = {
    "llama-4-scout": (SCOUT, 107_769_861_120),
    "llama-4-maverick": (MAVERICK, 400_711_848_960),
}
