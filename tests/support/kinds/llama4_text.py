"""llama4_text, tiny."""

from kinds import LLAMA, Kind

TEMPERED = {"floor_scale": 5, "attn_scale": 0.7}
SCOUT = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 1.0,
    "original_max_position_embeddings": 64,
}

KIND = Kind(
    tiny=LLAMA
    | {
        "num_hidden_layers": 4,
        "intermediate_size": 16,
        "intermediate_size_mlp": 40,
        "head_dim": 16,
        "num_local_experts": 4,
        "interleave_moe_layer_step": 2,
        "use_qk_norm": False,
        "attention_chunk_size": 9,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    },
    quirks={
        "plain": {},
        "as Scout": {
            "head_dim": 64,
            "use_qk_norm": True,
            "interleave_moe_layer_step": 1,
            "num_hidden_layers": 2,
            "no_rope_layer_interval": 2,
            "rope_parameters": SCOUT,
        },
        "tempered": TEMPERED,
        "not tempered": TEMPERED | {"attn_temperature_tuning": False, "no_rope_layer_interval": 2},
        "two experts": {"num_experts_per_tok": 2, "moe_layers": [0, 1], "attention_bias": True, "rms_norm_eps": 0.01},
        "all dense": {"moe_layers": [], "tie_word_embeddings": True, "num_key_value_heads": 4},
        "kinds apart": {
            "no_rope_layers": [1, 0, 0, 1],
            "layer_types": ["full_attention", "chunked_attention", "full_attention", "chunked_attention"],
            "hidden_act": "gelu",
        },
    },
    dtypes=("plain", "as Scout", "tempered"),
    changes=(
        ("plain", {"attention_chunk_size": 10}),
        ("plain", {"no_rope_layers": [1, 1, 0, 1]}),
        ("plain", {"use_qk_norm": True}),
        ("plain", {"num_experts_per_tok": 2}),
        ("as Scout", {"use_qk_norm": False}),
        ("as Scout", {"rms_norm_eps": 1.1e-05}),
        ("as Scout", {"rope_parameters": SCOUT | {"factor": 8.0}}),
        ("tempered", {"floor_scale": 6}),
        ("tempered", {"attn_scale": 0.701}),
        ("tempered", {"attn_temperature_tuning": False}),
        ("kinds apart", {"layer_types": ["full_attention"] * 4}),
    ),
    refused=(
        ("plain", {"num_experts_per_tok": 5}, "num_experts_per_tok <= num_local_experts"),
        ("plain", {"no_rope_layers": [1, 0]}, "len(no_rope_layers) >= num_hidden_layers"),
        ("plain", {"no_rope_layers": [1, 0, 2, 1]}, "no_rope_layers"),
        ("plain", {"moe_layers": [4]}, "moe_layers"),
        ("plain", {"attention_chunk_size": 0}, "attention_chunk_size"),
        ("plain", {"attn_temperature_tuning": 3}, "attn_temperature_tuning"),
        ("kinds apart", {"layer_types": ["full_attention", "sliding_attention"] * 2}, "layer_types"),
    ),
)
